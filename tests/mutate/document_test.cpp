// SPDX-License-Identifier: Apache-2.0
#include "mutate/document.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "plans.h"
#include "shardproof/error.h"

namespace shardproof::mutate {
namespace {

std::string contentOf(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

TEST(Document, AGeneratedPlanComesOutByteForByte) {
  const Written g(with(small("llama3"), [](auto& o) {
    o.dp = o.tp = o.pp = o.microbatches = 2, o.vocabularyParallel = true, o.schedule = "1f1b";
  }));
  EXPECT_EQ(documentText(g.document()), g.files.plan);
}

TEST(Document, DecimalsKeepTheirDigits) {
  const test::TemporaryDirectory directory;
  const std::string text =
      R"({"a": [0.12345678901234567890123, 1e-05, -1.50, 3, "0.1", null, true,
          123456789012345678901234567890]})";
  const Json document = readDocument(directory.write("d.json", text));
  std::string squeezed = documentText(document);
  std::erase(squeezed, '\n');
  EXPECT_EQ(squeezed, text);
  EXPECT_TRUE(isNumber(document["a"][1]));
  EXPECT_FALSE(isNumber(document["a"][4]));
  EXPECT_DOUBLE_EQ(numberOf(document["a"][1]), 1e-5);
}

TEST(Document, NamesAreEscaped) {
  const test::TemporaryDirectory directory;
  const std::string text = "{\"a\\\"b\\\\\": \"x\\ny\"}";
  const Json document = readDocument(directory.write("d.json", text));
  EXPECT_EQ(document, readDocument(directory.write("e.json", documentText(document))));
  EXPECT_EQ(document.at("a\"b\\"), "x\ny");
}

TEST(Document, CompressedByName) {
  const Written g(small("mlp"));
  const std::string file = g.directory.write("g.plan.json.gz", "");
  writeDocument(file, g.files.plan);
  EXPECT_LT(contentOf(file).size(), g.files.plan.size() / 2);
  EXPECT_EQ(documentText(readDocument(file)), g.files.plan);
  const std::string plain = g.directory.write("again.json", "");
  writeDocument(plain, g.files.plan);
  EXPECT_EQ(contentOf(plain), g.files.plan);
}

TEST(Document, WhatIsNoJsonIsAnInputError) {
  const test::TemporaryDirectory directory;
  EXPECT_THROW(readDocument(directory.write("a.json", "{\"a\": ")), InputError);
  EXPECT_THROW(readDocument(directory.write("b.json", std::string(100, '['))), InputError);
  EXPECT_THROW(readDocument("no such file"), InputError);
}

TEST(Document, Scaled) {
  EXPECT_EQ(scaled(Json(8), 1, 4), Json(2));
  EXPECT_EQ(scaled(Json(8), 2), Json(16));
  EXPECT_DOUBLE_EQ(numberOf(scaled(Json(1), 1, 4)), 0.25);
  EXPECT_EQ(scaled(decimal("1e-05"), 2), decimal("2e-05"));
}

}  // namespace
}  // namespace shardproof::mutate
