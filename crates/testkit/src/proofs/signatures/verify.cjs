// Verifies requests for the proof `signatures`, one JSON object per line: `v1` signatures with the official library
// from npm, `v1a` signatures with Node's own Ed25519, because the library does not support them. Prints a line for
// each request: `ok`, or `no` if it is refused.
const crypto = require("node:crypto");
const fs = require("node:fs");
const { Webhook } = require("standardwebhooks");

// The prefix of a raw Ed25519 public key in the SPKI form of X.509.
const SPKI = Buffer.from("302a300506032b6570032100", "hex");

function verifyPublic(publicKey, body, headers) {
  const raw = Buffer.from(publicKey.replace(/^whpk_/, ""), "base64");
  const key = crypto.createPublicKey({ key: Buffer.concat([SPKI, raw]), format: "der", type: "spki" });
  const signed = Buffer.concat([Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`), body]);
  const good = headers["webhook-signature"].split(" ").some((entry) => {
    const [version, signature] = entry.split(",");
    return version === "v1a" && crypto.verify(null, signed, key, Buffer.from(signature, "base64"));
  });
  if (!good) throw new Error("no signature matches");
}

const answers = [];
for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { secret, public_key: publicKey, body, headers } = JSON.parse(line);
  const bytes = Buffer.from(body, "base64");
  try {
    if (publicKey) verifyPublic(publicKey, bytes, headers);
    else new Webhook(secret).verify(bytes, headers);
    answers.push("ok");
  } catch {
    answers.push("no");
  }
}
console.log(answers.join("\n"));
