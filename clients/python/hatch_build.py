"""Builds an sdist with the licence texts instead of the symbolic links to them."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FollowLinks(BuildHookInterface):
    def initialize(self, version, build_data):
        files = build_data["force_include"]
        build_data["force_include"] = {os.path.realpath(path): files[path] for path in files}
