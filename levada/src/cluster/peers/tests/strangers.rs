//! Those who are kept out.

use super::*;
use crate::cluster::pki::authority::Answer;
use crate::cluster::pki::credentials::{Credentials, provider};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use std::net::UdpSocket;

/// What a stranger could make of a key and certificates, without looking whether they are good.
fn forged(key: &rcgen::KeyPair, answer: &Answer, host: &str) -> Credentials {
    let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let own = CertifiedKey::from_der(answer.chain.clone(), der, &provider()).unwrap();
    let mut roots = RootCertStore::empty();
    answer.trust.iter().for_each(|root| roots.add(root.clone()).unwrap());
    let never = OffsetDateTime::now_utc();
    Credentials {
        host: host.to_owned(),
        not_after: never,
        authority_not_after: never,
        authorities: 1,
        own: Arc::new(own),
        roots: Arc::new(roots),
        secret: vec![1],
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Connects to `to` as if it were host "b", says something, and returns why that came to an end.
fn intrude(client: ClientConfig, to: SocketAddr) -> String {
    runtime().block_on(async {
        let endpoint = Endpoint::client(super::address()).unwrap();
        let connection = match endpoint.connect_with(client, to, "b").unwrap().await {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        let _ = connection.send_datagram(b"intruder".to_vec().into());
        let stream = tokio::time::timeout(Duration::from_millis(1), connection.open_uni()).await;
        assert!(!matches!(stream, Ok(Ok(_))), "a stream was opened");
        connection.closed().await.to_string()
    })
}

#[test]
fn who_is_not_of_the_cluster_is_not_heard() {
    let (place, authority, other) = (TestDirectory::new(), Authority::new().unwrap(), Authority::new().unwrap());
    let [a, b] = company(&place, &authority, ["a", "b"]);
    let genuine = Credentials::load(&place.0.join("b"), "b").unwrap();

    // Another authority's, for the very name of a member; it takes this cluster's for good.
    let (key, text) = request("b").unwrap();
    let mut answer = other.sign(&text).unwrap().1;
    let chain_of_ours = authority.sign(&text).unwrap().1.trust;
    answer.trust = chain_of_ours;
    let end = intrude(flow::client(&forged(&key, &answer, "b")).unwrap(), b.address());
    assert!(end.contains("certificate") || end.contains("signature") || end.contains("CA"), "{end}");

    // None at all.
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::clone(&genuine.roots), provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_webpki_verifier(verifier.build().unwrap())
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"levada/1".to_vec()];
    let client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let end = intrude(client, b.address());
    assert!(end.contains("certificate"), "{end}");

    // One that has expired.
    let (key, answer) = authority.expired("b");
    let end = intrude(flow::client(&forged(&key, &answer, "b")).unwrap(), b.address());
    assert!(end.contains("xpired") || end.contains("certificate"), "{end}");

    until("all three are counted", || b.peers.seen().refused.get("unproven") == Some(&3));

    // A good one, of a host that is no member.
    let (key, text) = request("mallory").unwrap();
    let answer = authority.sign(&text).unwrap().1;
    let end = intrude(flow::client(&forged(&key, &answer, "mallory")).unwrap(), b.address());
    assert!(end.contains("closed"), "{end}");
    until("it is counted", || b.peers.seen().refused.get("not-a-member") == Some(&1));

    // One of this host itself: nobody else speaks in its name.
    let end = intrude(flow::client(&genuine).unwrap(), b.address());
    assert!(end.contains("closed"), "{end}");

    assert_eq!(b.count(), 0, "{:?}", b.heard.lock().unwrap());
    a.tell(&b, b"and the member is heard");
    assert_eq!(b.heard.lock().unwrap().iter().filter(|(_, what)| what == b"intruder").count(), 0);
}

#[test]
fn nothing_is_said_to_a_host_with_another_name() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, c] = company(&place, &authority, ["a", "c"]);
    // Where b should be, there is c.
    a.meet("b", c.address());
    until("it is found out", || {
        a.peers.voice().send("b", b"for b alone".to_vec());
        std::thread::sleep(Duration::from_millis(20));
        a.status("b").error.is_some()
    });
    let error = a.status("b").error.unwrap().1;
    assert!(error.contains("not that of host \"b\""), "{error}");
    assert_eq!((c.count(), a.status("b").sent), (0, 0));
}

#[test]
fn who_was_taken_from_the_list_is_not_heard_any_more() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [a, mut b] = company(&place, &authority, ["a", "b"]);
    a.tell(&b, b"hello");
    b.settings.others.clear();
    b.peers.change(b.settings.clone());
    until("it is gone", || b.peers.seen().hosts.is_empty());
    until("it is told", || a.status("b").error.is_some_and(|(_, why)| why.contains("does not know this host")));
    let before = b.count();
    for _ in 0..20 {
        a.peers.voice().send("b", b"still there?".to_vec());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(b.count(), before);
}

#[test]
fn captured_packets_and_garbage_do_nothing() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, b] = company(&place, &authority, ["a", "b"]);
    let wire = Wire::to(b.address());
    a.meet("b", wire.address());
    for n in 0..20 {
        a.tell(&b, format!("word {n}").as_bytes());
    }
    // What is under way still arrives.
    std::thread::sleep(Duration::from_millis(100));
    let (before, captured) = (b.count(), wire.captured());
    assert!(captured.len() > 20);
    // From the very address that sent them, and from another; in order, backwards, and cut.
    let elsewhere = UdpSocket::bind(address()).unwrap();
    let same = UdpSocket::bind(address()).unwrap();
    for packet in captured.iter().chain(captured.iter().rev()) {
        let _ = elsewhere.send_to(packet, b.address());
        let _ = same.send_to(packet, wire.address());
        let _ = elsewhere.send_to(&packet[..packet.len() / 2], b.address());
    }
    let mut random = 1u32;
    for length in 0..1400usize {
        let garbage: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        })
        .take(length)
        .collect();
        let _ = elsewhere.send_to(&garbage, b.address());
        let _ = elsewhere.send_to(&garbage, wire.address());
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(b.count(), before, "something was heard twice");
    let connections = a.status("b").connections;
    a.tell(&b, b"and goes on");
    assert_eq!(a.status("b").connections, connections, "on the same connection");
}

#[test]
fn thousands_of_attempts_keep_no_member_away() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [a, b] = company(&place, &authority, ["a", "b"]);
    let (key, answer) = authority.expired("b");
    let client = flow::client(&forged(&key, &answer, "b")).unwrap();
    let to = b.address();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let crowd = std::thread::spawn(move || {
        runtime().block_on(async {
            let endpoint = Endpoint::client(super::address()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let attempts: Vec<_> =
                    (0..100).map(|_| endpoint.connect_with(client.clone(), to, "b").unwrap()).collect();
                tokio::time::sleep(Duration::from_millis(50)).await;
                drop(attempts);
            }
        });
    });
    a.tell(&b, b"through the crowd");
    until("a crowd was refused", || b.peers.seen().refused.values().sum::<u64>() > 100);
    a.tell(&b, b"once more");
    over.store(true, Ordering::Relaxed);
    crowd.join().unwrap();
    a.tell(&b, b"and after it");
    assert!(!b.heard("b", b"intruder"));
}
