//! The fuzz corpus of configurations, replayed by ordinary tests: its seeds are the examples and
//! the cases of `tests/problems`, and what the fuzz target promises holds for every file there,
//! crashes that were found and cured included.
//!
//! `LEVADA_REGENERATE=1 cargo test -p control --test corpus` writes the seeds anew.

#[path = "../../fuzz/src/action.rs"]
mod action;
#[path = "../../fuzz/src/agent.rs"]
mod agent;
#[path = "../../fuzz/src/config.rs"]
mod config;
#[path = "../../fuzz/src/filter.rs"]
mod filter;
#[path = "../../fuzz/src/report.rs"]
mod report;
#[path = "../../fuzz/src/service.rs"]
mod service;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_seeds_are_the_examples_and_the_problems() {
    let corpus = here("../fuzz/corpus/config");
    let mut seeds = files(&here("../examples"));
    seeds.extend(files(&here("tests/problems")));
    seeds.retain(|file| file.extension().is_some_and(|e| e == "toml"));
    assert!(seeds.len() > 20);
    let mut names = BTreeSet::new();
    for file in seeds {
        assert!(names.insert(file.file_stem().unwrap().to_owned()), "two seeds would be called {}", file.display());
        let text = std::fs::read(&file).unwrap();
        let seed = corpus.join(file.file_stem().unwrap());
        if std::env::var_os("LEVADA_REGENERATE").is_some() {
            std::fs::create_dir_all(&corpus).unwrap();
            std::fs::write(&seed, &text).unwrap();
        }
        assert!(std::fs::read(&seed).is_ok_and(|old| old == text), "{} is out of date", seed.display());
    }
}

#[test]
fn everything_holds_for_the_whole_corpus() {
    for file in files(&here("../fuzz/corpus/config")) {
        config::run(&std::fs::read(file).unwrap());
    }
}

#[test]
fn every_filter_of_the_corpus_is_judged() {
    let files = files(&here("../fuzz/corpus/filter"));
    assert!(files.len() >= 5);
    for file in files {
        filter::run(&std::fs::read(file).unwrap());
    }
}

#[test]
fn everything_holds_for_all_actions() {
    let files = files(&here("../fuzz/corpus/action"));
    assert!(files.len() >= 5);
    for file in files {
        action::run(&std::fs::read(file).unwrap());
    }
}

#[test]
fn no_datagram_of_the_corpus_does_harm() {
    let files = files(&here("../fuzz/corpus/agent"));
    assert!(files.len() >= 5);
    for file in files {
        agent::run(&std::fs::read(file).unwrap());
    }
}

/// And five hundred cases that look like chance (Marsaglia's xorshift, 2003).
#[test]
fn no_frame_of_the_corpus_harms_a_service() {
    let files = files(&here("../fuzz/corpus/service"));
    assert!(files.len() >= 5);
    for file in files {
        service::run(&std::fs::read(file).unwrap());
    }
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..500 {
        let mut case = vec![0; 100 * service::STEP];
        for byte in &mut case {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            *byte = (dice >> 32) as u8;
        }
        service::run(&case);
    }
}

/// And five hundred cases that look like chance.
#[test]
fn no_report_of_the_corpus_is_believed_that_should_not_be() {
    let files = files(&here("../fuzz/corpus/report"));
    assert!(files.len() >= 5);
    for file in files {
        report::run(&std::fs::read(file).unwrap());
    }
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..500 {
        let mut case = vec![0; 200 * report::STEP];
        for byte in &mut case {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            *byte = (dice >> 32) as u8;
        }
        report::run(&case);
    }
}
