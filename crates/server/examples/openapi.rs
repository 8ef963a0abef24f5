//! Prints the OpenAPI document, as `GET /openapi.json` serves it: `cargo run -p posthaste-server --example openapi`.

fn main() {
    println!("{:#}", posthaste_server::openapi::document());
}
