//! How connections between hosts behave: QUIC (RFC 9000) with datagrams alone (RFC 9221), TLS 1.3
//! (RFC 9001) with certificates on both sides.
//!
//! Nothing is resumed and nothing is said early (no 0-RTT, no tickets): every connection proves
//! both certificates anew, and what was captured of another says nothing. At rest nothing is sent:
//! there is no keep-alive.

use crate::cluster::pki::credentials::{Credentials, provider, verifier};
use quinn::congestion::{Controller, ControllerFactory};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest datagram between agents, in bytes.
pub const MAX_DATAGRAM: usize = 1200;
/// UDP payload of our packets, in bytes: [`MAX_DATAGRAM`], and 38 of QUIC (1 flags, 8 connection
/// id, 4 number, 9 frame, 16 seal: what quinn counts at most). It is not searched for and not
/// lowered: with IPv6 that makes packets of 1288 bytes, which every Ethernet carries.
const PAYLOAD: u16 = 1240;
/// For so long a connection is kept at rest: a minute. It costs some ten KiB of memory and no
/// packet; a new one costs two round trips and about two milliseconds of computing at both ends.
pub const REST: Duration = Duration::from_secs(60);
/// The round trip expected before one was measured: above what a data centre has, so that nothing
/// is repeated for nothing, and low enough that a lost packet of a handshake is repeated within 60
/// ms.
const EXPECTED_RTT: Duration = Duration::from_millis(20);
/// Datagrams that wait in QUIC, in bytes, in each direction: those of some 100 ms at
/// [`super::rate::RATE`] and full length.
pub const BUFFER: usize = 128 << 10;
/// Bytes that may be on their way.
const WINDOW: u64 = 4 << 20;
/// What we speak above TLS (RFC 7301); the number is that of the agents' messages.
const PROTOCOL: &[u8] = b"levada/1";
/// QUIC version 1 and no other.
const VERSION: u32 = 1;
/// Attempts that wait to be looked at.
const ATTEMPTS: usize = 256;

/// A congestion controller that never holds anything back.
///
/// What we send *is* congestion control, of far more than itself: feedback that waited because the
/// network is full would let it stay full. It is bounded all the same: by the agents, who send a
/// few datagrams in each interval, and by the bucket of each host (`rate`), at most 1 % of a link
/// of 1 Gbit/s. So the window is fixed, and no loss changes it. It is what that bucket lets through
/// in 3.5 s; a host that has acknowledged nothing for so long is taken for dead before (`line`).
#[derive(Clone, Debug)]
struct Unhurried;

impl Controller for Unhurried {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for Unhurried {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Unhurried)
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        // No streams: nothing to hold a window for, nothing to leave open.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(0))
        .receive_window(VarInt::from_u32(0))
        .send_window(0)
        .datagram_receive_buffer_size(Some(BUFFER))
        .datagram_send_buffer_size(BUFFER)
        .max_idle_timeout(IdleTimeout::try_from(REST).ok())
        .keep_alive_interval(None)
        .initial_rtt(EXPECTED_RTT)
        .initial_mtu(PAYLOAD)
        .min_mtu(PAYLOAD)
        .mtu_discovery_config(None)
        // One small datagram at a time.
        .enable_segmentation_offload(false)
        .allow_spin(false)
        .congestion_controller_factory(Arc::new(Unhurried));
    Arc::new(transport)
}

/// How those who connect are met.
pub fn server(credentials: &Credentials) -> Result<ServerConfig, String> {
    let verifier = verifier(&credentials.roots)?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(resolver(credentials));
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    tls.send_tls13_tickets = 0;
    tls.max_early_data_size = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    server
        .transport_config(transport())
        // A host has one address.
        .migration(false)
        .max_incoming(ATTEMPTS)
        .incoming_buffer_size(8 << 10)
        .incoming_buffer_size_total(256 << 10)
        .retry_token_lifetime(Duration::from_secs(5));
    server.validation_token.sent(0);
    Ok(server)
}

/// How others are met.
pub fn client(credentials: &Credentials) -> Result<ClientConfig, String> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&credentials.roots), provider())
        .build()
        .map_err(|error| error.to_string())?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(resolver(credentials));
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    tls.resumption = Resumption::disabled();
    tls.enable_early_data = false;
    let crypto = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(transport());
    Ok(client)
}

fn resolver(credentials: &Credentials) -> Arc<SingleCertAndKey> {
    Arc::new(SingleCertAndKey::from(Arc::clone(&credentials.own)))
}

/// What the socket knows of connections that it does not know.
///
/// A daemon that was killed has forgotten its connections, and the others do not know that. With
/// keys that come from the host's own, the next one recognises what was meant for the last one, and
/// says so (a stateless reset, RFC 9000 section 10.3): they connect anew at once.
pub fn endpoint(credentials: &Credentials) -> Result<EndpointConfig, String> {
    let derived = |what: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &credentials.secret), what);
    let mut config =
        EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, derived(b"levada reset").as_ref())));
    let word = derived(b"levada connection id").as_ref().iter().take(8).fold(0, |word, &b| word << 8 | u64::from(b));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(word)));
    config.supported_versions(vec![VERSION]);
    config.max_udp_payload_size(1472).map_err(|error| error.to_string())?;
    Ok(config)
}
