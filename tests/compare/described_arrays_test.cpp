// SPDX-License-Identifier: Apache-2.0
// Traces of other frameworks: a description, and files of NumPy or safetensors.
#include "compare/described_arrays.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

using nlohmann::json;

std::string bytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// A .npy file as numpy.save writes it, of version 1.
std::string arrayText(const std::string& header, const std::string& data) {
  const std::string padded =
      header + std::string((64 - (11 + header.size()) % 64) % 64, ' ') + "\n";
  const auto length = static_cast<std::uint16_t>(padded.size());
  return std::string("\x93NUMPY\x01\x00", 8) +
         std::string(reinterpret_cast<const char*>(&length), sizeof length) + padded + data;
}

std::string headerOf(const std::string& descr, const std::string& shape, const char* fortran) {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

std::vector<float> values(float factor) {
  std::vector<float> list;
  for (int i = 0; i < 64; ++i) list.push_back(factor * static_cast<float>(i % 5 + 1));
  return list;
}

// A rank with one tensor in w.npy.
void writeArrays(const std::string& folder, int rank, const json& mesh, const std::string& array,
                 const json& more = json::object()) {
  const std::string file = "w" + std::to_string(rank) + ".npy";
  json tensor = {{"name", "w"}, {"kind", "gradient"}, {"order", 0}, {"file", file}};
  tensor.update(more);
  writeFile(folder + "/" + file, array);
  writeFile(folder + "/rank" + std::to_string(rank) + ".trace.json",
            json{{"format", "shardproof-trace 1"},
                 {"rank", rank},
                 {"mesh", mesh},
                 {"tensors", {{"w#0", tensor}}}}
                .dump());
}

std::string messageOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DescribedArrays, FilesOfNumPyAreCompared) {
  const Folder folder;
  const std::string whole = headerOf("<f4", "(64,)", "False");
  writeArrays(folder.path("r"), 0, json::array(), arrayText(whole, bytesOf(values(1))));
  writeArrays(folder.path("r") + "/draw1", 0, json::array(),
              arrayText(whole, bytesOf(values(1 + 1e-6F))));
  const std::vector<float> all = values(1);
  for (const float factor : {1.0F, 2.0F}) {
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<float> half(all.begin() + 32 * rank, all.begin() + 32 * rank + 32);
      for (float& value : half) value *= factor;
      writeArrays(folder.path("c"), rank, json::array({{"dp", 2}}),
                  arrayText(headerOf("<f4", "(32,)", "False"), bytesOf(half)),
                  {{"shape", {64}}, {"parts", {{0, {32 * rank}, {32}}}}});
    }
    EXPECT_EQ(compareTraces(folder.path("r"), folder.path("c"), {}).verdict,
              factor == 1 ? Agreement::kAgrees : Agreement::kDiffers);
  }
}

TEST(DescribedArrays, BitsOfDtypesThatNumPyLacks) {
  const Folder folder;
  // 1 and -2 in bf16
  writeFile(folder.path("w.npy"),
            arrayText(headerOf("<V2", "(2,)", "False"), std::string("\x80\x3f\x00\xc0", 4)));
  const MappedFile file(folder.path("w.npy"), ".npy");
  const Stored stored = arrayOf(file, "w.npy", "BF16");
  double found[2];
  widen(stored.dtype, stored.data, stored.count, found);
  EXPECT_EQ(found[0], 1);
  EXPECT_EQ(found[1], -2);
  EXPECT_NE(messageOf([&] { arrayOf(file, "w.npy", ""); }).find("give their dtype"),
            std::string::npos);
  EXPECT_NE(messageOf([&] { arrayOf(file, "w.npy", "F32"); }).find("as many bytes"),
            std::string::npos);
}

TEST(DescribedArrays, TensorsOfASafetensorsFile) {
  const Folder folder;
  writeFile(folder.path("all.safetensors"),
            safetensorsText({{"a", {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {0, 4}}}}},
                            bytesOf({3})));
  json description = {{"format", "shardproof-trace 1"},
                      {"tensors", {{"w", {{"file", "all.safetensors"}, {"key", "a"}}}}}};
  writeFile(folder.path("r.trace.json"), description.dump());
  EXPECT_EQ(DescribedArrays(folder.path("r.trace.json")).tensors().at("w").count, 1U);
  description["tensors"]["w"]["key"] = "b";
  writeFile(folder.path("r.trace.json"), description.dump());
  EXPECT_NE(messageOf([&] { DescribedArrays(folder.path("r.trace.json")); }).find("found b, which"),
            std::string::npos);
}

TEST(DescribedArrays, WhatIsBrokenIsAnErrorWithItsPlace) {
  const std::string four = std::string(16, '\0');
  const std::string good = headerOf("<f4", "(4,)", "False");
  ASSERT_EQ(messageOf([&] {
              const Folder folder;
              writeFile(folder.path("w.npy"), arrayText(good, four));
              arrayOf(MappedFile(folder.path("w.npy"), ".npy"), "w.npy", "");
            }),
            "no error");
  const std::vector<std::pair<std::string, std::string>> broken = {
      {"NUMPY", "is no file of NumPy"},
      {arrayText(good, four).substr(0, 40), "may have been cut off"},
      {arrayText(good, four + "x"), "found 17 bytes of elements, expected 4"},
      {arrayText(headerOf(">f4", "(4,)", "False"), four), "expected little-endian"},
      {arrayText(headerOf("<f4", "(2, 2)", "True"), four), "expected rows first"},
      {arrayText(headerOf("<f4", "(-4,)", "False"), four), "sizes that are not negative"},
      {arrayText(headerOf("<f4", "(4,)", "Maybe"), four), "expected True or False"},
      {arrayText("{'descr': [('x', '<f4')], 'shape': (4,)}", four), "expected '''"},
      {arrayText("{'descr': '<f4', 'shape': (4,)}", four), "once each"},
      {arrayText("{'other': '<f4'}", four), "found the entry other"}};
  for (const auto& [text, message] : broken) {
    const Folder folder;
    writeFile(folder.path("w.npy"), text);
    const std::string found =
        messageOf([&] { arrayOf(MappedFile(folder.path("w.npy"), ".npy"), "w.npy", ""); });
    EXPECT_NE(found.find(message), std::string::npos) << found << "\nexpected " << message;
  }
}

TEST(DescribedArrays, NamesOfOtherFoldersAreErrors) {
  for (const char* name : {"../w.npy", "/etc/passwd", ""}) {
    const Folder folder;
    const json description = {{"format", "shardproof-trace 1"},
                              {"tensors", {{"w", {{"file", name}}}}}};
    writeFile(folder.path("r.trace.json"), description.dump());
    EXPECT_NE(
        messageOf([&] { DescribedArrays(folder.path("r.trace.json")); }).find("below this folder"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace shardproof::compare
