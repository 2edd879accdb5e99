// SPDX-License-Identifier: Apache-2.0
#include "util/sha256.h"

#include <gtest/gtest.h>

#include "util/base64.h"

namespace shardproof {
namespace {

// The examples of FIPS 180-4's companion document.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sha;
  for (int i = 0; i < 1000; ++i) sha.update(std::string(1000, 'a'));
  EXPECT_EQ(sha.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha.hex(), sha256Hex(""));
}

// RFC 4648, section 10.
TEST(Base64, ThereAndBack) {
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(fromBase64(base64(bytes)), bytes);
    bytes += static_cast<char>(i * 37);
  }
}

TEST(Base64, OneTextForOneValue) {
  for (const char* text : {"Zm9vYh==", "Zm9v Yg==", "Zm9vYg=", "Zm9vYg", "Zm9vYg==\n", "=",
                           "Zm9v*g==", "Zm9vYg==Zm9v"})
    EXPECT_FALSE(fromBase64(text)) << text;
}

}  // namespace
}  // namespace shardproof
