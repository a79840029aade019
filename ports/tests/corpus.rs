//! The fuzz corpora of VDE requests and of machines' messages and rings, replayed by ordinary tests: the seeds of the first are written down here, and
//! what the fuzz targets promise holds for every file there, crashes that were found and cured included.
//!
//! `LEVADA_REGENERATE=1 cargo test -p ports --test corpus` writes the seeds anew.

#[path = "../../fuzz/src/vde.rs"]
mod vde;
#[path = "../../fuzz/src/vhost.rs"]
mod vhost;

use ports::vde::request::{MAGIC, VERSION, answer};
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/vde")
}

fn request(magic: u32, version: u32, kind: u32, path: &str, description: &str) -> Vec<u8> {
    let head = [magic, version, kind].map(u32::to_ne_bytes).concat();
    [&head[..], &answer(Path::new(path)).unwrap(), description.as_bytes()].concat()
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const PATH: &str = "/run/vde/.01234-00000";
    vec![
        ("any-plug", request(MAGIC, VERSION, 0, PATH, "vde_plug2tap: user=root pid=1234")),
        ("plug-7", request(MAGIC, VERSION, 7 << 8, "/tmp/vde.01234-00000", "")),
        ("management", request(MAGIC, VERSION, 1, PATH, "")),
        ("kind", request(MAGIC, VERSION, 2, PATH, "")),
        ("version-1", request(MAGIC, 1, 0, PATH, "")),
        ("magic", request(!MAGIC, VERSION, 0, PATH, "")),
        ("relative", request(MAGIC, VERSION, 0, "tmp/x", "")),
        ("unnamed", request(MAGIC, VERSION, 0, "", "")),
        ("abstract", request(MAGIC, VERSION, 0, "\0levada", "")),
        ("too-long", request(MAGIC, VERSION, 0, PATH, &"x".repeat(129))),
        ("escape", request(MAGIC, VERSION, 0, PATH, "\x1b[2J\0hidden")),
        ("half", request(MAGIC, VERSION, 0, PATH, "")[..60].to_vec()),
    ]
}

#[test]
fn the_seeds_are_as_written_down() {
    for (name, bytes) in seeds() {
        let seed = corpus().join(name);
        if std::env::var_os("LEVADA_REGENERATE").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&seed, &bytes).unwrap();
        }
        assert!(std::fs::read(&seed).is_ok_and(|old| old == bytes), "{} is out of date", seed.display());
    }
}

#[test]
fn everything_holds_for_the_whole_corpus() {
    for entry in std::fs::read_dir(corpus()).unwrap() {
        vde::run(&std::fs::read(entry.unwrap().path()).unwrap());
    }
    let rings = std::fs::read_dir(corpus().with_file_name("vhost")).unwrap();
    let count = rings.map(|entry| vhost::run(&std::fs::read(entry.unwrap().path()).unwrap())).count();
    assert!(count >= 10, "{count}");
}
