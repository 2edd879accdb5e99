#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tools of all scripts, chosen in one place: every script sources this, and
#   scripts/tools.sh COMMAND...    runs a command with them.
# On Debian they are the packages that scripts/setup installs, in /usr/bin. A CMake, Ninja,
# clang-format or Python of pip, pyenv or conda that comes first on the caller's PATH has other
# policies, another layout and other libraries: what works with it can fail on a machine that has
# only the packages.
# Elsewhere they are those of PATH; scripts/setup says so.
# SHARDPROOF_PATH: where to look instead; SHARDPROOF_PATH=$PATH takes the caller's own tools.
if [ -n "${SHARDPROOF_PATH:-}" ]; then
  PATH=$SHARDPROOF_PATH
elif command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  PATH=/usr/sbin:/usr/bin:/sbin:/bin
  # CMake looks for Python in these before PATH, and Python for its modules.
  unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
fi
export PATH
if [ "${0##*/}" = tools.sh ]; then
  exec "$@"
fi
