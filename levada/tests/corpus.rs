//! The fuzz corpus of takeovers, replayed by an ordinary test: what the fuzz target promises holds for every file there, crashes that were
//! found and cured included.

#[path = "../../fuzz/src/handover.rs"]
mod handover;

#[test]
fn everything_holds_for_the_whole_corpus() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/handover");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 3);
    for file in files {
        println!("{}", file.display());
        handover::run(&std::fs::read(&file).unwrap());
    }
}
