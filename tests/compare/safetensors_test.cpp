// SPDX-License-Identifier: Apache-2.0
// Broken files, one defect at a time: the message has the file, the place, what was found and what
// was expected.
#include "compare/safetensors.h"

#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

const nlohmann::json kEntry = {{"dtype", "F32"}, {"shape", {2, 1}}, {"data_offsets", {0, 8}}};

std::string messageOf(const std::string& text) {
  const Folder folder;
  writeFile(folder.path("a.safetensors"), text);
  try {
    const SafetensorsFile file(folder.path("a.safetensors"));
  } catch (const InputError& error) {
    EXPECT_EQ(error.file(), folder.path("a.safetensors"));
    return error.inFile();
  }
  return "no error";
}

std::string withEntry(const char* key, const nlohmann::json& value) {
  nlohmann::json entry = kEntry;
  entry[key] = value;
  return messageOf(safetensorsText({{"x", entry}}, std::string(8, '\0')));
}

TEST(Safetensors, ElementsAreThoseOfTheFile) {
  const Folder folder;
  const float values[] = {1.5F, -2};
  writeFile(folder.path("a.safetensors"),
            safetensorsText({{"x", kEntry}, {"__metadata__", {{"format", "pt"}}}},
                            std::string(reinterpret_cast<const char*>(values), 8)));
  const SafetensorsFile file(folder.path("a.safetensors"));
  const Stored& x = file.tensors().at("x");
  EXPECT_EQ(x.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  double out[2];
  widen(x.dtype, x.data, x.count, out);
  EXPECT_EQ(out[0], 1.5);
  EXPECT_EQ(out[1], -2);
}

TEST(Safetensors, AFileThatIsCutOff) {
  EXPECT_EQ(messageOf("abc"),
            "byte 0: found a file of 3 bytes, expected 8 bytes with the length of the header");
  EXPECT_EQ(messageOf(""),
            "byte 0: found a file of 0 bytes, expected 8 bytes with the length of the header");
  EXPECT_EQ(messageOf(std::string(8, '\x7f') + "{}"),
            "byte 0: found a header of 9187201950435737471 bytes in a file of 10 bytes, expected "
            "at most 2");
  EXPECT_EQ(messageOf(safetensorsText({{"x", kEntry}}, "1234")),
            "header/x/data_offsets: found [0, 8], expected a range within the 4 bytes of data: the "
            "file may have been cut off");
}

TEST(Safetensors, HeadersThatAreNone) {
  EXPECT_TRUE(messageOf(std::string("\2\0\0\0\0\0\0\0{]", 10)).starts_with("header: is no JSON"));
  EXPECT_EQ(messageOf(safetensorsText(nlohmann::json::array(), "")),
            "header: found array, expected a JSON object");
  EXPECT_EQ(messageOf(safetensorsText({{"x", {{"dtype", "F32"}}}}, "")),
            "header/x: expected an object with dtype, shape and data_offsets");
  EXPECT_EQ(messageOf(safetensorsText({{"__metadata__", {{"a", 1}}}}, "")),
            "header/__metadata__/a: found number, expected a string");
}

TEST(Safetensors, EntriesThatCannotBe) {
  EXPECT_TRUE(withEntry("dtype", "F4").starts_with("header/x/dtype: found \"F4\", expected F64"));
  EXPECT_EQ(withEntry("shape", {2, -1}),
            "header/x/shape: found -1, expected a number from 0 to 2^62");
  EXPECT_EQ(withEntry("shape", {3, 1}),
            "header/x/data_offsets: found 8 bytes, expected 3 elements of 4 bytes");
  EXPECT_EQ(withEntry("shape", {std::int64_t{1} << 40, std::int64_t{1} << 40}),
            "header/x/data_offsets: found 8 bytes, expected more than 2^40 elements of 4 bytes");
  EXPECT_EQ(withEntry("data_offsets", {8, 0}),
            "header/x/data_offsets: found [8, 0], expected a range within the 8 bytes of data: the "
            "file may have been cut off");
  EXPECT_EQ(withEntry("data_offsets", {0}), "header/x/data_offsets: expected [begin, end]");
}

TEST(Safetensors, DataOfTwoTensorsOrOfNone) {
  nlohmann::json other = kEntry;
  other["data_offsets"] = {4, 12};
  EXPECT_NE(messageOf(safetensorsText({{"x", kEntry}, {"y", other}}, std::string(12, '\0'))),
            "no error");
  other["data_offsets"] = {12, 20};
  EXPECT_NE(messageOf(safetensorsText({{"x", kEntry}, {"y", other}}, std::string(20, '\0'))),
            "no error");
  other["data_offsets"] = {8, 16};
  EXPECT_NE(messageOf(safetensorsText({{"x", kEntry}, {"y", other}}, std::string(17, '\0'))),
            "no error");
  EXPECT_EQ(messageOf(safetensorsText({{"x", kEntry}, {"y", other}}, std::string(16, '\0'))),
            "no error");
}

TEST(Safetensors, NoFile) {
  const Folder folder;
  EXPECT_THROW(SafetensorsFile(folder.path("none")), InputError);
  EXPECT_THROW(SafetensorsFile(folder.path()), InputError);
}

}  // namespace
}  // namespace shardproof::compare
