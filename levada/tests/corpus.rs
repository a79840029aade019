//! The fuzz corpora of takeovers and of stores, replayed by ordinary tests: what the fuzz targets
//! promise holds for every file there, crashes that were found and cured included.

#[path = "../../fuzz/src/handover.rs"]
mod handover;
#[path = "../../fuzz/src/store.rs"]
mod store;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 3);
    for file in files {
        println!("{}", file.display());
        run(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn everything_holds_for_the_whole_corpus_of_takeovers() {
    replay("handover", handover::run);
}

#[test]
fn everything_holds_for_the_whole_corpus_of_stores() {
    replay("store", store::run);
}
