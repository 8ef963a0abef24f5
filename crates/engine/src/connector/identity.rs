//! An endpoint's own TLS settings: authorities to trust in addition to the server's roots, and a
//! client certificate (I1).
//!
//! Endpoints with different identities share no connection, so that a connection authenticated for one
//! is never used for another. An [`Identity`] can only be made of texts that can be used.

use std::fmt;
use std::sync::Arc;

use posthaste_crypto::digest::{self, Digest};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::trust;

/// The most bytes of each PEM text. A long chain with its comments has 20 KiB.
pub const PEM_BYTES_MAX: usize = 64 * 1024;
/// The most authorities of one endpoint, and the most certificates of a client's chain: each handshake checks or sends
/// them.
pub const CERTIFICATES_MAX: usize = 16;

/// The texts that an [`Identity`] is made of, as the API and the store have them. At least one must be given.
#[derive(Clone, Copy, Default)]
pub struct IdentityPem<'a> {
    /// Certificates of authorities that are trusted for this endpoint, in addition to the server's roots.
    pub ca: Option<&'a str>,
    /// The client certificate, followed by the chain to its authority.
    pub client_cert: Option<&'a str>,
    pub client_key: Option<&'a str>,
}

/// Extra authorities, a client certificate, or both.
#[derive(Clone)]
pub struct Identity {
    /// A digest of all parts; different identities have different ones.
    pub(super) fingerprint: Digest,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) client: Option<Arc<CertifiedKey>>,
}

/// Why texts make no [`Identity`]. [`BadIdentity::field`] names the text that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    #[error("is empty; give ca, or client_cert with client_key, or all three")]
    Empty,
    #[error("has {bytes} bytes, the most is {PEM_BYTES_MAX}; give only the certificates that are needed")]
    TooLong { field: &'static str, bytes: usize },
    #[error("is not PEM; it must have lines such as -----BEGIN {expected}-----")]
    NotPem { field: &'static str, expected: &'static str },
    #[error("has more than {CERTIFICATES_MAX} certificates; give only those that are needed")]
    TooMany { field: &'static str },
    #[error("certificate {number} cannot be used as an authority; give a CA's X.509 certificate")]
    BadAuthority {
        /// The certificate's number in the text, counted from 1.
        number: usize,
    },
    #[error("is missing; a client certificate needs its private key")]
    NoKey,
    #[error("is missing; a client key needs its certificate")]
    NoCertificate,
    #[error("cannot be used; give an unencrypted RSA, ECDSA or Ed25519 key")]
    BadKey,
    #[error("does not belong to the first certificate of client_cert")]
    KeyDoesNotFit,
    #[error("its first certificate cannot be read; give an X.509 certificate")]
    BadCertificate,
}

impl BadIdentity {
    /// The API name of the text that is wrong; `None` if none was given.
    pub const fn field(&self) -> Option<&'static str> {
        match self {
            Self::Empty => None,
            Self::TooLong { field, .. } | Self::NotPem { field, .. } | Self::TooMany { field } => Some(field),
            Self::BadAuthority { .. } => Some("ca"),
            Self::NoKey | Self::BadKey | Self::KeyDoesNotFit => Some("client_key"),
            Self::NoCertificate | Self::BadCertificate => Some("client_cert"),
        }
    }
}

impl Identity {
    /// Parses the texts. Whether a client certificate has expired is not checked: its receiver decides that.
    pub fn parse(pem: IdentityPem<'_>) -> Result<Self, BadIdentity> {
        let authorities = match pem.ca {
            Some(text) => certificates("ca", text)?,
            None => Vec::new(),
        };
        // Added to a separate store, so that an unusable one is reported now and not at a handshake.
        let mut store = RootCertStore::empty();
        for (authority, number) in authorities.iter().zip(1..) {
            store.add(authority.clone()).map_err(|_| BadIdentity::BadAuthority { number })?;
        }
        let mut parts: Vec<&[u8]> = authorities.iter().map(AsRef::as_ref).collect();
        let (chain, key) = match (pem.client_cert, pem.client_key) {
            (None, None) if authorities.is_empty() => return Err(BadIdentity::Empty),
            (None, None) => {
                let fingerprint = digest::hash_parts(&parts);
                return Ok(Self { fingerprint, authorities, client: None });
            }
            (Some(_), None) => return Err(BadIdentity::NoKey),
            (None, Some(_)) => return Err(BadIdentity::NoCertificate),
            (Some(chain), Some(key)) => (certificates("client_cert", chain)?, private_key(key)?),
        };
        // Without the separator an authority and a client certificate of the same bytes would be the same identity.
        parts.push(b"client");
        parts.extend(chain.iter().map(AsRef::as_ref));
        parts.push(key.secret_der());
        let fingerprint = digest::hash_parts(&parts);
        let client = certified(chain, key)?;
        Ok(Self { fingerprint, authorities, client: Some(client) })
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Identity {}

impl fmt::Debug for Identity {
    /// Shows neither keys nor a digest of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("authorities", &self.authorities.len())
            .field("client", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for IdentityPem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityPem(…)")
    }
}

fn certificates(field: &'static str, text: &str) -> Result<Vec<CertificateDer<'static>>, BadIdentity> {
    bounded(field, text)?;
    let not_pem = || BadIdentity::NotPem { field, expected: "CERTIFICATE" };
    let mut list = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        if list.len() == CERTIFICATES_MAX {
            return Err(BadIdentity::TooMany { field });
        }
        list.push(certificate.map_err(|_| not_pem())?);
    }
    if list.is_empty() { Err(not_pem()) } else { Ok(list) }
}

fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, BadIdentity> {
    bounded("client_key", text)?;
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| BadIdentity::NotPem { field: "client_key", expected: "PRIVATE KEY" })
}

fn bounded(field: &'static str, text: &str) -> Result<(), BadIdentity> {
    let bytes = text.len();
    if bytes > PEM_BYTES_MAX { Err(BadIdentity::TooLong { field, bytes }) } else { Ok(()) }
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, BadIdentity> {
    let key = trust::provider().key_provider.load_private_key(key).map_err(|_| BadIdentity::BadKey)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(rustls::Error::InconsistentKeys(_)) => Err(BadIdentity::KeyDoesNotFit),
        Err(_) => Err(BadIdentity::BadCertificate),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A self-signed certificate and its key.
    fn pair() -> (String, String) {
        let key = KeyPair::generate().expect("randomness");
        let params = CertificateParams::new(vec!["client.example.com".to_owned()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    fn ca(text: &str) -> IdentityPem<'_> {
        IdentityPem { ca: Some(text), ..IdentityPem::default() }
    }

    fn client<'a>(cert: &'a str, key: &'a str) -> IdentityPem<'a> {
        IdentityPem { ca: None, client_cert: Some(cert), client_key: Some(key) }
    }

    fn check(pem: IdentityPem<'_>, expected: &str) {
        let error = Identity::parse(pem).expect_err(expected);
        assert_eq!(format!("{} {error}", error.field().unwrap_or("tls")), expected);
    }

    #[test]
    fn unusable_texts_are_refused_with_their_name_and_a_remedy() {
        let ((cert, key), (_, other_key)) = (pair(), pair());
        let no_pem = IdentityPem::default();
        check(no_pem, "tls is empty; give ca, or client_cert with client_key, or all three");
        let no_key = IdentityPem { client_cert: Some(&cert), ..no_pem };
        check(no_key, "client_key is missing; a client certificate needs its private key");
        let no_cert = IdentityPem { client_key: Some(&key), ..no_pem };
        check(no_cert, "client_cert is missing; a client key needs its certificate");
        check(client(&cert, &other_key), "client_key does not belong to the first certificate of client_cert");
        let not_pem = "is not PEM; it must have lines such as -----BEGIN";
        check(ca("hello"), &format!("ca {not_pem} CERTIFICATE-----"));
        check(ca(&key), &format!("ca {not_pem} CERTIFICATE-----"));
        check(client(&cert, &cert), &format!("client_key {not_pem} PRIVATE KEY-----"));
        let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let second = "ca certificate 2 cannot be used as an authority; give a CA's X.509 certificate";
        check(ca(&format!("{cert}{nonsense}")), second);
        let first = "client_cert its first certificate cannot be read; give an X.509 certificate";
        check(client(nonsense, &key), first);
        let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        check(client(&cert, no_key), "client_key cannot be used; give an unencrypted RSA, ECDSA or Ed25519 key");
        let too_many = cert.repeat(CERTIFICATES_MAX + 1);
        check(ca(&too_many), "ca has more than 16 certificates; give only those that are needed");
        let too_long = "-".repeat(PEM_BYTES_MAX + 1);
        check(ca(&too_long), "ca has 65537 bytes, the most is 65536; give only the certificates that are needed");
    }

    #[test]
    fn identities_are_equal_only_if_all_parts_are() {
        let ((authority, _), (certificate, key)) = (pair(), pair());
        let parse = |pem| Identity::parse(pem).expect("texts that fit");
        let (ca_alone, client_alone) = (ca(&authority), client(&certificate, &key));
        let both = IdentityPem { ca: Some(&authority), ..client_alone };
        let all = [ca_alone, client_alone, both].map(parse);
        assert_eq!(all[2], parse(both));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    }

    #[test]
    fn printing_an_identity_shows_none_of_it() {
        let (certificate, key) = pair();
        let pem = client(&certificate, &key);
        let identity = Identity::parse(pem).expect("texts that fit");
        assert_eq!(format!("{identity:?}"), "Identity { authorities: 0, client: true, .. }");
        assert_eq!(format!("{pem:?}"), "IdentityPem(…)");
    }
}
