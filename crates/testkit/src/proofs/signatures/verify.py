# Verifies requests for the proof `signatures`, one JSON object per line, with the official library from PyPI.
# Prints a line for each request: `ok`, or `no` if the library refuses it.
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
