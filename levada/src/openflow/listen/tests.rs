use super::*;

#[test]
fn what_was_sent_is_not_kept() {
    // A switch that always leaves something waiting.
    let (mut out, mut next, mut told) = (Outgoing::default(), 0_u8, Vec::new());
    for _ in 0..10_000 {
        out.take(&mut (0..100).map(|n: u8| next.wrapping_add(n)).collect());
        next = next.wrapping_add(100);
        let count = out.waits() - 7;
        told.extend_from_slice(&out.bytes[out.sent..out.sent + count]);
        out.sent += count;
        assert!(out.bytes.len() <= 300, "{}", out.bytes.len());
    }
    assert!(told.iter().enumerate().all(|(at, &byte)| byte == at as u8), "all of it, in order");
}

#[test]
fn a_file_that_is_no_socket_of_ours_stays() {
    let directory = std::env::temp_dir().join(format!("levada-listen-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = |name: &str| {
        let listen = Listen::Unix(directory.join(name).display().to_string());
        runtime.block_on(Door::open(&OpenFlow { listen, ..OpenFlow::default() }, None))
    };
    // A path that was mistyped.
    std::fs::write(directory.join("precious"), "data").unwrap();
    let why = open("precious").err().unwrap();
    assert!(why.contains("`listen` in [openflow]") && why.contains("it is no socket; remove it"), "{why}");
    assert_eq!(std::fs::read_to_string(directory.join("precious")).unwrap(), "data");
    // One that is left behind is replaced, one that is in use is not, and nobody else may connect.
    drop(std::os::unix::net::UnixListener::bind(directory.join("of.sock")).unwrap());
    let door = open("of.sock").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&door_permissions(&directory));
    assert_eq!(mode & 0o777, 0o600);
    assert!(open("of.sock").err().unwrap().contains("somebody listens there"));
    // Somebody else's in its place stays when it goes.
    std::fs::remove_file(directory.join("of.sock")).unwrap();
    std::fs::write(directory.join("of.sock"), "another's").unwrap();
    drop(door);
    assert!(directory.join("of.sock").exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

fn door_permissions(directory: &Path) -> std::fs::Permissions {
    std::fs::metadata(directory.join("of.sock")).unwrap().permissions()
}
