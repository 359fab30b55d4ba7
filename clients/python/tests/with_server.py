"""Run a command while a server with the module runs. {port} in its words is the server's port."""

import subprocess
import sys

from conftest import Server

server = Server()
words = [word.replace("{port}", str(server.port)) for word in sys.argv[1:]]
status = subprocess.run(words).returncode
server.stop()
sys.exit(status)
