//! What a host proves itself with, and by whom others must be vouched for: the files in the
//! directory of `[cluster]`.
//!
//! | file | mode | on | what |
//! |---|---|---|---|
//! | `host.pem` | 0600 | every host | its private key, its certificate, and what leads from that to an authority |
//! | `trust.pem` | 0600 | every host | the authorities whose certificates count; two while one takes over from another |
//! | `authority.pem` | 0600 | one host | the authority's private key and certificates |
//! | `request.pem` | 0600 | a host that waits | the private key for which a certificate was asked |
//!
//! A file is replaced whole, by another that takes its name, so that nobody ever reads half of one;
//! key and certificate are one file, so that they always fit.

use control::config::DEFAULT_DIRECTORY;
use rustls::pki_types::pem::{Error as Damage, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, crypto};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate, X509Name};

/// See the table above.
pub const HOST: &str = "host.pem";
/// See the table above.
pub const TRUST: &str = "trust.pem";
/// See the table above.
pub const AUTHORITY: &str = "authority.pem";
/// See the table above.
pub const REQUEST: &str = "request.pem";
/// Longest file that is read, in bytes: a hundred certificates.
const MAX_FILE: u64 = 64 << 10;
/// Bits of a mode that let others read a key.
const OTHERS: u32 = 0o077;

/// What one host proves itself with.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Its name.
    pub host: String,
    /// When its certificate ends.
    pub not_after: OffsetDateTime,
    /// When the last of the authorities that it trusts ends.
    pub authority_not_after: OffsetDateTime,
    /// How many authorities it trusts.
    pub authorities: usize,
    /// Its private key and certificates.
    pub own: Arc<CertifiedKey>,
    /// The authorities that count.
    pub roots: Arc<RootCertStore>,
    /// A secret that lasts as long as the key, for what must be known again after a restart.
    pub secret: Vec<u8>,
}

/// What is read of a certificate.
pub struct Parsed {
    /// The one DNS name in it; none of an authority.
    pub host: Option<String>,
    /// Until when it is good.
    pub not_after: OffsetDateTime,
    /// Since when.
    not_before: OffsetDateTime,
    /// Whether it vouches for itself: an authority.
    pub is_root: bool,
    /// What it is called, and who signed it.
    pub subject: String,
    /// See `subject`.
    pub issuer: String,
}

impl Parsed {
    /// Reads a certificate.
    pub fn new(certificate: &CertificateDer<'_>) -> Result<Parsed, String> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| format!("a certificate cannot be read: {error}"))?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map_or(&[][..], |extension| &extension.value.general_names);
        let host = match names {
            [GeneralName::DNSName(name)] => Some((*name).to_owned()),
            _ => None,
        };
        let validity = parsed.validity();
        Ok(Parsed {
            host,
            not_after: validity.not_after.to_datetime(),
            not_before: validity.not_before.to_datetime(),
            is_root: parsed.subject() == parsed.issuer(),
            subject: common_name(parsed.subject()),
            issuer: common_name(parsed.issuer()),
        })
    }
}

/// The name without what kind of name it is, which is the same for all.
fn common_name(name: &X509Name<'_>) -> String {
    let text = name.to_string();
    text.strip_prefix("CN=").map_or_else(|| text.clone(), str::to_owned)
}

impl Credentials {
    /// Those of `host` in `directory`.
    pub fn load(directory: &Path, host: &str) -> Result<Credentials, String> {
        let file = directory.join(HOST);
        let (name, remedy) = (file.display(), join(directory, host));
        match file.try_exists() {
            Ok(true) => {}
            Ok(false) => return Err(format!("{name} is not there: {remedy}")),
            Err(error) => return Err(format!("cannot look at {name}: {error}")),
        }
        let trust = directory.join(TRUST);
        let damaged = |why| format!("{why}; {remedy}");
        let (key, chain) = read_private(&file).map_err(damaged)?;
        let trust = certificates(&read(&trust)?, &trust).map_err(damaged)?;
        let credentials = Credentials::from_key(key, chain, trust, &name.to_string(), &remedy)?;
        if credentials.host != host {
            return Err(format!(
                "{name} is the certificate of host \"{}\", and [cluster] host is \"{host}\": correct that, or {remedy}",
                credentials.host
            ));
        }
        Ok(credentials)
    }

    /// Those made of a private key (PEM), and of the answer to a request: the certificates that go
    /// with the key, and the authorities.
    pub fn of(
        key_pem: &str,
        chain: Vec<CertificateDer<'static>>,
        trust: Vec<CertificateDer<'static>>,
    ) -> Result<Credentials, String> {
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|error| format!("the key is not good: {error}"))?;
        Credentials::from_key(key, chain, trust, "the answer", "ask for it again with levada cluster join")
    }

    fn from_key(
        key: PrivateKeyDer<'static>,
        chain: Vec<CertificateDer<'static>>,
        trust: Vec<CertificateDer<'static>>,
        what: &str,
        remedy: &str,
    ) -> Result<Credentials, String> {
        let leaf = chain.first().ok_or_else(|| format!("{what} has no certificate: {remedy}"))?.clone();
        let parsed = Parsed::new(&leaf).map_err(|error| format!("{what}: {error}"))?;
        let host = parsed.host.ok_or_else(|| format!("{what}: the certificate does not name one host"))?;
        let now = OffsetDateTime::now_utc();
        if now > parsed.not_after {
            return Err(format!("{what}: the certificate has expired on {}: {remedy}", parsed.not_after.date()));
        }
        if now < parsed.not_before {
            return Err(format!(
                "{what}: the certificate is good from {} only, and it is {} here: set the clock",
                parsed.not_before.date(),
                now.date()
            ));
        }
        let secret = key.secret_der().to_vec();
        let own = CertifiedKey::from_der(chain.clone(), key, &provider()).map_err(|error| {
            format!(
                "{what}: the key does not go with the certificate, which is that of host \"{host}\": {error}; {remedy}"
            )
        })?;
        let (mut roots, mut last) = (RootCertStore::empty(), None);
        let authorities = trust.len();
        for root in trust {
            last = last.max(Some(Parsed::new(&root)?.not_after));
            roots.add(root).map_err(|error| format!("{what}: an authority is not good: {error}"))?;
        }
        let authority_not_after = last.ok_or_else(|| format!("{what}: there is no authority; {remedy}"))?;
        let roots = Arc::new(roots);
        vouched(&roots, &chain).map_err(|error| {
            format!("{what}: no authority that counts here vouches for the certificate ({error}); {remedy}")
        })?;
        Ok(Credentials {
            host,
            not_after: parsed.not_after,
            authority_not_after,
            authorities,
            own: Arc::new(own),
            roots,
            secret,
        })
    }
}

/// What helps where a certificate is missing or not good.
fn join(directory: &Path, host: &str) -> String {
    format!("get one with levada cluster join --host {host}{}", option(directory))
}

/// The option that says where, unless it is the usual place.
pub fn option(directory: &Path) -> String {
    if directory == Path::new(DEFAULT_DIRECTORY) { String::new() } else { format!(" -d {}", directory.display()) }
}

/// The cryptography of all connections: ring's, given by name, so that no other can be picked up by
/// chance.
pub fn provider() -> Arc<crypto::CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

/// Who vouches for those who connect.
pub fn verifier(roots: &Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider())
        .build()
        .map_err(|error| error.to_string())
}

/// Whether one of `roots` vouches for the first of `chain`, now.
pub fn vouched(roots: &Arc<RootCertStore>, chain: &[CertificateDer<'static>]) -> Result<(), String> {
    let Some((leaf, rest)) = chain.split_first() else { return Err("there is none".to_owned()) };
    verifier(roots)?.verify_client_cert(leaf, rest, UnixTime::now()).map(drop).map_err(|error| error.to_string())
}

/// The certificates in a text (PEM, RFC 7468).
pub fn certificates(text: &[u8], file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    all.map_err(|error| format!("{}: a certificate is damaged: {}", file.display(), said(&error)))
}

/// What is wrong with a text: in words, and not in the bytes of its lines.
fn said(error: &Damage) -> &'static str {
    match error {
        Damage::MissingSectionEnd { .. } => "the end of a section is missing",
        Damage::NoItemsFound => "there is none in it",
        Damage::IllegalSectionStart { .. } => "the beginning of a section is not as it ought to be",
        _ => "it is no base64 between BEGIN and END",
    }
}

/// Certificates as text.
pub fn pem_of<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    let one = |der: &CertificateDer<'_>| pem::encode_config(&pem::Pem::new("CERTIFICATE", der.to_vec()), LINES);
    certificates.into_iter().map(one).collect()
}

/// Lines end as Unix has them.
const LINES: pem::EncodeConfig = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);

/// A private key and the certificates behind it, from a file that nobody else may read.
pub fn read_private(file: &Path) -> Result<(PrivateKeyDer<'static>, Vec<CertificateDer<'static>>), String> {
    let name = file.display();
    let mode = fs::metadata(file).map_err(|error| format!("cannot read {name}: {error}"))?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(format!(
            "{name} has mode {:04o}, so that others can read or change the key in it: chmod 0600 {name}, and where they may have, get a new one",
            mode & 0o7777
        ));
    }
    let text = read(file)?;
    let key =
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| format!("{name} has no private key: {}", said(&error)))?;
    Ok((key, certificates(&text, file)?))
}

/// What is in a file of ours.
pub fn read(file: &Path) -> Result<Vec<u8>, String> {
    use io::Read as _;
    let failed = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => ": it must belong to the user of the daemon",
            io::ErrorKind::NotFound => ": levada cluster join makes it",
            _ => "",
        };
        format!("cannot read {}: {error}{remedy}", file.display())
    };
    let mut text = Vec::new();
    File::open(file).map_err(failed)?.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("{} is longer than {} KiB: it is none of ours", file.display(), MAX_FILE >> 10));
    }
    Ok(text)
}

/// Replaces a file by one that only its owner can read.
pub fn write_private(file: &Path, text: &str) -> Result<(), String> {
    let mut coming = file.as_os_str().to_owned();
    coming.push(".new");
    let write = || -> io::Result<()> {
        // What an earlier attempt left.
        let _ = fs::remove_file(&coming);
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&coming)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&coming, file)
    };
    write().map_err(|error| format!("cannot write {}: {error}", file.display()))
}
