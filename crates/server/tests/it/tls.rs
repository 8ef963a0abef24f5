//! Endpoints with TLS settings of their own, created through the API and delivered to over real sockets.
//! `engine/tests/it/tls.rs` tests every case of which certificate is trusted.

use std::sync::Arc;

use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::fixture::{Answer, Server};

/// A receiver that requires a client certificate of its own certificate authority.
struct Strict {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of its authority.
    ca: String,
}

impl Strict {
    async fn start() -> Self {
        let key = KeyPair::generate().expect("randomness");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).expect("an authority's certificate");
        let issuer = Issuer::new(params, key);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("an authority's certificate");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let (certificate, key) = signed("127.0.0.1", &issuer);
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS")
            .with_client_cert_verifier(verifier.build().expect("there is a root"))
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .expect("a certificate that fits its key");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)), issuer, ca: authority.pem() }
    }

    /// Creates an endpoint for this receiver with these TLS settings.
    async fn endpoint(&self, server: &Server, tls: Value) -> Answer {
        let url = format!("https://{}/", self.listener.local_addr().expect("it listens"));
        server.post("/v1/endpoints", &json!({ "url": url, "tls": tls }).to_string()).await.expect(StatusCode::CREATED)
    }

    async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let (stream, _) = self.listener.accept().await.expect("the attempt comes");
        self.acceptor.accept(stream).await
    }
}

fn signed(name: &str, issuer: &Issuer<'_, KeyPair>) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().expect("randomness");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name for a certificate");
    (params.signed_by(&key, issuer).expect("a certificate"), key)
}

#[tokio::test]
async fn an_endpoint_with_its_own_ca_and_client_certificate_gets_messages() {
    let (server, receiver) = (Server::start().await, Strict::start().await);
    let (certificate, key) = signed("client.example.com", &receiver.issuer);
    let tls = json!({ "ca": receiver.ca, "client_cert": certificate.pem(), "client_key": key.serialize_pem() });
    let made = receiver.endpoint(&server, tls).await;
    assert_eq!(made.body["tls"], json!({ "ca": true, "client_cert": true }));
    assert!(!made.body.to_string().contains("PRIVATE KEY"), "{}", made.body);
    let path = server.delivery(r#"{"payload": {"n": 42}}"#).await;

    let mut stream = receiver.accept().await.expect("both sides trust each other");
    let presented: Option<&[CertificateDer<'_>]> = stream.get_ref().1.peer_certificates();
    assert_eq!(presented, Some([certificate.der().clone()].as_slice()));
    let mut request = Vec::new();
    while !request.ends_with(br#"{"n": 42}"#) {
        assert!(stream.read_buf(&mut request).await.expect("a request") > 0);
    }
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("the server reads it");
    server.until(&path, "delivered").await;
}

#[tokio::test]
async fn attempts_fail_without_client_certificate_or_trusted_ca() {
    let (server, receiver) = (Server::start().await, Strict::start().await);
    // A TLS 1.3 receiver refuses a client certificate only after the request was written, so its outcome is unknown.
    for (tls, case, cause) in [
        (json!({ "ca": receiver.ca }), "the endpoint has no client certificate", "unknown"),
        (json!(null), "the receiver's authority is not trusted", "tls_certificate"),
    ] {
        let endpoint = receiver.endpoint(&server, tls).await;
        let to = json!({ "payload": 1, "to": { "endpoints": [endpoint.text("id")] } });
        let path = server.delivery(&to.to_string()).await;
        assert!(receiver.accept().await.is_err(), "{case}");
        let shown = server.until(&path, "retry").await;
        assert_eq!(shown.text("cause"), cause, "{case}: {}", shown.body);
    }
}
