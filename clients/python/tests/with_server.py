"""Run a command while a server with the module runs. {port} in its words is the server's port."""

import subprocess
import sys
import tempfile

from conftest import Server

with tempfile.TemporaryDirectory() as folder:
    server = Server(folder)
    try:
        words = [word.replace("{port}", str(server.port)) for word in sys.argv[1:]]
        status = subprocess.run(words).returncode
    finally:
        server.stop()
sys.exit(status)
