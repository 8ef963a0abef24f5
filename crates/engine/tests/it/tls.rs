//! TLS: which receivers are trusted, and that no other ever sees a byte of a message.

use std::sync::Arc;

use posthaste_core::Cause;
use posthaste_engine::connector::Settings;
use posthaste_engine::{ConnectionFault, Identity, IdentityPem, Roots};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::network::{Bench, Names, Patience, SHORT, Witness, addresses, settings};
use crate::receiver::{Receiver, Step, write};

pub(crate) struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("randomness");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate of an authority");
        Self { certificate: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::none().with(self.certificate.clone()).expect("an authority's certificate")
    }

    /// A receiver's side of TLS with a certificate for these names and addresses.
    pub(crate) fn acceptor(&self, names: &[&str]) -> TlsAcceptor {
        self.acceptor_with(&params(names), WebPkiClientVerifier::no_client_auth())
    }

    /// The same, which accepts only clients with a certificate of this authority.
    fn acceptor_for_clients(&self, names: &[&str]) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority's certificate");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        self.acceptor_with(&params(names), verifier.build().expect("there is a root"))
    }

    /// An identity with a client certificate of this authority, which also trusts `ca` if it is given.
    fn identity(&self, ca: Option<&Self>) -> Arc<Identity> {
        let key = KeyPair::generate().expect("randomness");
        let certificate = params(&["client.example.com"]).signed_by(&key, &self.issuer).expect("a certificate");
        let (client_cert, client_key) = (certificate.pem(), key.serialize_pem());
        let pem = IdentityPem {
            ca: ca.map(|authority| authority.pem.as_str()),
            client_cert: Some(&client_cert),
            client_key: Some(&client_key),
        };
        Arc::new(Identity::parse(pem).expect("texts that fit"))
    }

    pub(crate) fn acceptor_of(&self, names: &[&str], protocols: &[&str]) -> TlsAcceptor {
        let mut config = ServerConfig::clone(self.acceptor(names).config());
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    fn acceptor_with(&self, params: &CertificateParams, clients: Arc<dyn ClientCertVerifier>) -> TlsAcceptor {
        let key = KeyPair::generate().expect("randomness");
        let certificate = params.signed_by(&key, &self.issuer).expect("a receiver's certificate");
        acceptor(certificate.der().clone(), &key, clients)
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).expect("names for a certificate")
}

fn acceptor(certificate: CertificateDer<'static>, key: &KeyPair, clients: Arc<dyn ClientCertVerifier>) -> TlsAcceptor {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate], key)
        .expect("a certificate that fits its key");
    TlsAcceptor::from(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

const NAME: &str = "hooks.example.com";

/// Checks that an attempt at `https://hooks.example.com/` fails because of the certificate, and sends no request.
async fn check_refused(acceptor: TlsAcceptor, authority: &Authority) {
    let receiver = Receiver::start_tls(vec![vec![Step::Serve]], acceptor).await;
    let fault = fault(&receiver, authority).await;
    assert_eq!(fault.cause, Cause::TlsCertificate, "{fault:?}");
    assert_eq!((receiver.connections(), receiver.requests().len()), (1, 0));
}

async fn fault(receiver: &Receiver, authority: &Authority) -> ConnectionFault {
    let mut bench = bench(Settings { tls_timeout: SHORT, ..settings() }, receiver, authority.roots());
    bench.fault("https://hooks.example.com/").await
}

/// A bench on which every name leads to this receiver.
fn bench(settings: Settings, receiver: &Receiver, roots: Roots) -> Bench {
    let witness = Witness::new(receiver.address(), Patience::None);
    Bench::with(settings, Names::new([addresses(&["93.184.216.34"])]), witness, roots)
}

#[tokio::test]
async fn a_receiver_with_a_valid_certificate_gets_its_messages_over_one_connection() {
    let authority = Authority::new();
    let receiver = Receiver::start_tls(vec![vec![Step::Serve]], authority.acceptor(&[NAME])).await;
    let mut bench = bench(settings(), &receiver, authority.roots());
    for _ in 0..5 {
        assert_eq!(bench.answer("https://hooks.example.com/a").await.status, 200);
    }
    assert_eq!((receiver.connections(), receiver.requests().len()), (1, 5));
}

#[tokio::test]
async fn receiver_with_an_untrusted_certificate_gets_no_byte_of_the_message() {
    let authority = Authority::new();
    let key = KeyPair::generate().expect("randomness");
    let self_signed = params(&[NAME]).self_signed(&key).expect("a certificate").der().clone();
    let anyone = WebPkiClientVerifier::no_client_auth;
    check_refused(acceptor(self_signed, &key, anyone()), &authority).await;
    check_refused(Authority::new().acceptor(&[NAME]), &authority).await;
    check_refused(authority.acceptor(&["other.example.com", "example.com"]), &authority).await;
    let mut expired = params(&[NAME]);
    expired.not_after = date_time_ymd(2020, 1, 1);
    check_refused(authority.acceptor_with(&expired, anyone()), &authority).await;
    let mut early = params(&[NAME]);
    early.not_before = date_time_ymd(3000, 1, 1);
    check_refused(authority.acceptor_with(&early, anyone()), &authority).await;
}

#[tokio::test]
async fn an_address_must_be_in_its_certificate() {
    let authority = Authority::new();
    for (names, is_valid) in [(["127.0.0.1"], true), (["127.0.0.1.example.com"], false)] {
        let receiver = Receiver::start_tls(vec![vec![Step::Serve]], authority.acceptor(&names)).await;
        let witness = Witness::new(receiver.address(), Patience::None);
        let mut bench = Bench::with(settings(), Names::new([]), witness, authority.roots());
        let done = bench.attempt(&format!("https://{}/", receiver.address())).await;
        assert_eq!(done.result.map_err(|fault| fault.cause).is_ok(), is_valid);
        assert_eq!(receiver.requests().len(), usize::from(is_valid));
    }
}

#[tokio::test]
async fn failed_handshake_and_port_without_tls_have_different_causes() {
    let authority = Authority::new();
    let scripts = [
        (vec![Step::ReadFirst], Cause::TlsHandshake, None),
        (vec![Step::ReadFirst, Step::Reset], Cause::TlsHandshake, None),
        (vec![Step::ReadFirst, Step::Stall], Cause::TlsHandshake, Some("tls_timeout")),
        (
            vec![Step::ReadFirst, write("HTTP/1.1 400 Bad Request\r\n\r\n"), Step::Stall],
            Cause::ProtocolError,
            Some("not_tls"),
        ),
    ];
    for (script, cause, detail) in scripts {
        let receiver = Receiver::start(vec![script]).await;
        assert_eq!(fault(&receiver, &authority).await, ConnectionFault { cause, detail });
    }
}

/// Attempts at `https://hooks.example.com/`, one for each identity, and the status or cause of each.
async fn outcomes(receiver: &Receiver, roots: Roots, identities: &[Option<Arc<Identity>>]) -> Vec<String> {
    let mut bench = bench(settings(), receiver, roots);
    let mut outcomes = Vec::new();
    for (token, identity) in (1..).zip(identities) {
        let job = bench.job(token, "https://hooks.example.com/");
        let job = posthaste_engine::connector::ConnectorJob { identity: identity.clone(), ..job };
        bench.connector.send(job).expect("room for a job");
        outcomes.push(match bench.next().await.result {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(fault) => fault.cause.code().to_owned(),
        });
    }
    outcomes
}

#[tokio::test]
async fn endpoints_own_authority_is_trusted_for_it_alone() {
    let (own, system) = (Authority::new(), Authority::new());
    let pem = IdentityPem { ca: Some(&own.pem), ..IdentityPem::default() };
    let identity = Some(Arc::new(Identity::parse(pem).expect("a certificate of an authority")));
    let receiver = Receiver::start_tls(vec![vec![Step::Serve]], own.acceptor(&[NAME])).await;
    let both = [identity.clone(), None, identity.clone()];
    assert_eq!(outcomes(&receiver, system.roots(), &both).await, ["200", "tls_certificate", "200"]);
    assert_eq!(receiver.requests().len(), 2);
    // The server's own roots are trusted in addition.
    let receiver = Receiver::start_tls(vec![vec![Step::Serve]], system.acceptor(&[NAME])).await;
    assert_eq!(outcomes(&receiver, system.roots(), &[identity]).await, ["200"]);
}

#[tokio::test]
async fn client_certificate_is_sent_on_request_and_identities_share_no_connection() {
    let authority = Authority::new();
    let receiver = Receiver::start_tls(vec![vec![Step::Serve]], authority.acceptor_for_clients(&[NAME])).await;
    let mine = Some(authority.identity(None));
    let other = Some(authority.identity(Some(&authority)));
    let foreign = Some(Authority::new().identity(Some(&authority)));
    let all = [mine.clone(), mine.clone(), other.clone(), None, foreign, mine, other];
    let outcomes = outcomes(&receiver, authority.roots(), &all).await;
    assert_eq!(outcomes[..3], ["200", "200", "200"]);
    assert_eq!(outcomes[5..], ["200", "200"]);
    assert!(outcomes[3..5].iter().all(|code| code != "200"), "{outcomes:?}");
    assert_eq!(receiver.requests().len(), 5);
    // One connection for each identity, of which the receiver refused two.
    assert_eq!(receiver.connections(), 4);
}
