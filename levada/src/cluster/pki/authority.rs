//! The cluster's authority: it says which key belongs to which host, by certificates (X.509, RFC
//! 5280).
//!
//! Its key is on one host only, in `authority.pem`, and is needed for nothing but signing. It
//! changes without a moment in which two hosts do not trust each other: the old key signs the new
//! one as well (RFC 4210, section 4.4 calls that "new with old"), each certificate goes with that
//! one, and those who have been asked again trust both. So the hosts can follow in any order, and
//! when all have, the old one is forgotten.

use super::credentials::{AUTHORITY, Credentials, HOST, Parsed, TRUST, pem_of, read_private, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use std::path::Path;
use time::{Duration, OffsetDateTime};

/// How long a host's certificate is good: an operator who renews in the spring has time until the
/// next.
const HOST_LIFE: Duration = Duration::days(365);
/// How long an authority is good.
const AUTHORITY_LIFE: Duration = Duration::days(3650);
/// Certificates are good from so long ago: clocks of hosts differ.
const CLOCKS_DIFFER: Duration = Duration::days(1);

/// The authority, with its key.
pub struct Authority {
    key: KeyPair,
    /// Its own certificate.
    own: CertificateDer<'static>,
    /// While it takes over from an older one: itself, signed by the older one, and the older one.
    before: Option<[CertificateDer<'static>; 2]>,
}

/// What a host gets for its request.
pub struct Answer {
    /// Its certificate, and what leads from that to an authority that others may still have.
    pub chain: Vec<CertificateDer<'static>>,
    /// The authorities it is to trust.
    pub trust: Vec<CertificateDer<'static>>,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Authority, String> {
        Authority::named(&new_name())
    }

    fn named(name: &str) -> Result<Authority, String> {
        let key = new_key()?;
        let own = authority_params(name, 1).self_signed(&key).map_err(wrong)?.der().clone();
        Ok(Authority { key, own, before: None })
    }

    /// The one in `directory`.
    pub fn load(directory: &Path) -> Result<Authority, String> {
        let file = directory.join(AUTHORITY);
        if !file.exists() {
            return Err(format!(
                "{} is not there: the cluster's authority is on another host, or not made yet (levada cluster init)",
                file.display()
            ));
        }
        let (key, mut certificates) = read_private(&file)?;
        let key =
            KeyPair::try_from(&key).map_err(|error| format!("{}: the key is not good: {error}", file.display()))?;
        let before = match certificates.len() {
            1 => None,
            3 => certificates.pop().zip(certificates.pop()).map(|(old, cross)| [cross, old]),
            n => return Err(format!("{} has {n} certificates, not one or three: it is damaged", file.display())),
        };
        let own = certificates.remove(0);
        Ok(Authority { key, own, before })
    }

    /// Writes it into `directory`.
    pub fn store(&self, directory: &Path) -> Result<(), String> {
        let certificates = [&self.own].into_iter().chain(self.before.iter().flatten());
        write_private(&directory.join(AUTHORITY), &(self.key.serialize_pem() + &pem_of(certificates)))
    }

    /// Whether it is taking over from an older one.
    pub fn is_changing(&self) -> bool {
        self.before.is_some()
    }

    /// A new authority, which those who trust this one trust as well.
    pub fn successor(&self) -> Result<Authority, String> {
        let name = new_name();
        let mut new = Authority::named(&name)?;
        let old = Issuer::from_ca_cert_der(&self.own, &self.key).map_err(wrong)?;
        let cross = authority_params(&name, 0).signed_by(&new.key, &old).map_err(wrong)?.der().clone();
        new.before = Some([cross, self.own.clone()]);
        Ok(new)
    }

    /// Forgets the older one.
    pub fn finish(&mut self) {
        self.before = None;
    }

    /// A certificate for whoever made `request`, and the name of that host.
    pub fn sign(&self, request: &str) -> Result<(String, Answer), String> {
        let request = CertificateSigningRequestParams::from_pem(request)
            .map_err(|error| format!("this is no good request (levada cluster join makes one): {error}"))?;
        let mut names = request.params.subject_alt_names.iter();
        let name = match (names.next(), names.next()) {
            (Some(rcgen::SanType::DnsName(name)), None) => name.as_str().to_owned(),
            _ => return Err("the request does not name one host".to_owned()),
        };
        control::names::host(&name).map_err(|wrong| format!("{}; {}", wrong.message, wrong.remedy))?;
        let answer = self.certify(&request.public_key, host_params(&name)?)?;
        Ok((name, answer))
    }

    fn certify(&self, key: &impl PublicKeyData, mut params: CertificateParams) -> Result<Answer, String> {
        let issuer = Issuer::from_ca_cert_der(&self.own, &self.key).map_err(wrong)?;
        params.not_after = params.not_after.min(Parsed::new(&self.own)?.not_after);
        let leaf = params.signed_by(key, &issuer).map_err(wrong)?.der().clone();
        let cross = self.before.iter().map(|[cross, _]| cross.clone());
        let old = self.before.iter().map(|[_, old]| old.clone());
        let chain = [leaf].into_iter().chain(cross).collect();
        Ok(Answer { chain, trust: [self.own.clone()].into_iter().chain(old).collect() })
    }

    /// A certificate that has ended already, and its key.
    #[cfg(test)]
    pub fn expired(&self, host: &str) -> (KeyPair, Answer) {
        let (key, mut params) = (new_key().unwrap(), host_params(host).unwrap());
        params.not_before = OffsetDateTime::now_utc() - Duration::days(30);
        params.not_after = OffsetDateTime::now_utc() - Duration::hours(1);
        let answer = self.certify(&key, params).unwrap();
        (key, answer)
    }
}

/// A key for a host, and the request for its certificate.
pub fn request(host: &str) -> Result<(KeyPair, String), String> {
    let key = new_key()?;
    let request = named_params(host)?.serialize_request(&key).and_then(|request| request.pem()).map_err(wrong)?;
    Ok((key, request))
}

/// Puts what a host has got into `directory`. The authorities first: those of before are among them
/// until all hosts have the new one.
pub fn settle(directory: &Path, key_pem: &str, answer: &Answer) -> Result<Credentials, String> {
    let credentials = Credentials::of(key_pem, answer.chain.clone(), answer.trust.clone())?;
    write_private(&directory.join(TRUST), &pem_of(&answer.trust))?;
    write_private(&directory.join(HOST), &(key_pem.to_owned() + &pem_of(&answer.chain)))?;
    Ok(credentials)
}

/// Ed25519 (RFC 8410): small certificates, so that a handshake fits in few packets, and no choice
/// of curve or hash to get wrong.
fn new_key() -> Result<KeyPair, String> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(wrong)
}

fn wrong(error: rcgen::Error) -> String {
    format!("cannot make a certificate: {error}")
}

/// Names of authorities differ, so that a certificate says which of two signed it.
fn new_name() -> String {
    let random: String = new_serial().to_bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("Levada cluster {random}")
}

/// `below`: how many authorities may stand between it and a host.
fn authority_params(name: &str, below: u8) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.serial_number = Some(new_serial());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.use_authority_key_identifier_extension = true;
    life(&mut params, AUTHORITY_LIFE);
    params
}

/// What a request says: whose it is. All else the authority decides.
fn named_params(host: &str) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(vec![host.to_owned()]).map_err(wrong)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, host);
    Ok(params)
}

fn host_params(host: &str) -> Result<CertificateParams, String> {
    let mut params = named_params(host)?;
    params.serial_number = Some(new_serial());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    life(&mut params, HOST_LIFE);
    Ok(params)
}

fn life(params: &mut CertificateParams, life: Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCKS_DIFFER;
    params.not_after = now + life;
}

/// 127 random bits: positive, and never the same twice (RFC 5280, section 4.1.2.2).
fn new_serial() -> SerialNumber {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let word = || RandomState::new().build_hasher().finish();
    let mut bytes = (u128::from(word()) << 64 | u128::from(word())).to_be_bytes();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from(bytes.to_vec())
}
