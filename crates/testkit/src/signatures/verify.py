# Verifies what the proof `signatures` hands over, one JSON object a line, with the official library from PyPI.
# Answers a line for each: `ok`, or `no` for whatever the library refuses.
import base64
import json
import sys

from standardwebhooks import Webhook

for line in sys.stdin:
    case = json.loads(line)
    try:
        Webhook(case["secret"]).verify(base64.b64decode(case["body"]), case["headers"])
        print("ok")
    except Exception:
        print("no")
