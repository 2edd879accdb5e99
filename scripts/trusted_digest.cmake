# SPDX-License-Identifier: Apache-2.0
# Writes a source file with a digest of the trusted sources: names below ROOT and contents.
#   cmake -DROOT=... -DSOURCES=LIST_OF_FILES -DOUT=FILE -P scripts/trusted_digest.cmake
cmake_minimum_required(VERSION 3.25)
file(STRINGS "${SOURCES}" files)
set(all)
foreach(file IN LISTS files)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${ROOT}" OUTPUT_VARIABLE name)
  file(SHA256 "${file}" digest)
  string(APPEND all "${name} ${digest}\n")
endforeach()
string(SHA256 digest "${all}")
string(SUBSTRING "${digest}" 0 16 digest)
file(WRITE "${OUT}" "// Made by scripts/trusted_digest.cmake.\n#include \"cache/trusted_digest.h\"\n
namespace shardproof {\nconst char kTrustedDigest[] = \"${digest}\";\n}  // namespace shardproof\n")
