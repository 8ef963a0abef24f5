// Verifies what the proof `signatures` hands over, one JSON object a line: with the official library from npm, and
// what is signed with a private key with Node's own Ed25519, since the library knows `v1` alone.
// Answers a line for each: `ok`, or `no` for whatever is refused.
const crypto = require("node:crypto");
const fs = require("node:fs");
const { Webhook } = require("standardwebhooks");

// What stands in front of a raw Ed25519 public key in X.509's form.
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
