// SPDX-License-Identifier: Apache-2.0
#include "executor/npz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include <zip.h>

#include "kernels.h"
#include "support/problems.h"

namespace shardproof::executor {
namespace {

using testing::array;

std::string header(const std::string& type, const std::string& shape, bool fortran = false) {
  std::string text = "{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") +
                     ", 'shape': " + shape + ", }";
  while ((text.size() + 11) % 64 != 0) text += ' ';
  text += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(text.size() & 255);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text;
}

template <class N>
std::string bytesOf(std::vector<N> numbers) {
  std::string bytes(numbers.size() * sizeof(N), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

class Npz : public ::testing::Test {
 protected:
  // An archive with one array, as others may write it.
  std::string archive(const std::string& npy, const std::string& name = "x.npy") {
    const std::string file = directory_.write("a.npz", "");
    std::remove(file.c_str());
    zip_t* z = zip_open(file.c_str(), ZIP_CREATE, nullptr);
    zip_file_add(z, name.c_str(), zip_source_buffer(z, npy.data(), npy.size(), 0),
                 ZIP_FL_ENC_UTF_8);
    if (zip_close(z) != 0) throw std::runtime_error("the test cannot write its archive");
    return file;
  }
  Array read(const std::string& npy) { return readNpz(archive(npy)).at("x"); }
  std::string error(const std::string& npy) {
    try {
      readNpz(archive(npy));
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  }
  std::string path(const std::string& name) { return directory_.write(name, ""); }

 private:
  test::TemporaryDirectory directory_;
};

TEST_F(Npz, WhatIsWrittenIsRead) {
  const Array reals = array({2, 3},
                            {1.5, -2, 0, 1e300, -std::numeric_limits<double>::infinity(), 5e-324}),
              integers = array({3}, {1, -2, 1e15}, ElementKind::kInteger),
              complex = array({1, 2}, {1, 2, 3, 4}, ElementKind::kComplex), scalar = array({}, {7});
  const std::string file = path("w.npz");
  writeNpz(
      file,
      {{"model/a", &reals}, {"rank0/mb1/i", &integers}, {"\xc3\xa9#1", &complex}, {"s", &scalar}});
  const auto found = readNpz(file);
  ASSERT_EQ(found.size(), 4u);
  for (const auto& [name, expected] : std::map<std::string, Array>{
           {"model/a", reals}, {"rank0/mb1/i", integers}, {"\xc3\xa9#1", complex}, {"s", scalar}}) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).shape, expected.shape);
    EXPECT_EQ(found.at(name).element, expected.element);
    EXPECT_EQ(found.at(name).data, expected.data);
  }
  writeNpz(file, {{"only", &scalar}});  // the file is replaced
  EXPECT_EQ(readNpz(file).size(), 1u);
}

TEST_F(Npz, EveryTypeAndOrder) {
  EXPECT_EQ(read(header("<f8", "(2,)") + bytesOf<double>({1.25, -3})).data,
            (std::vector<double>{1.25, -3}));
  EXPECT_EQ(read(header("<f4", "(2,)") + bytesOf<float>({1.25F, -3})).data,
            (std::vector<double>{1.25, -3}));
  EXPECT_EQ(
      read(header("<f2", "(4,)") + bytesOf<std::uint16_t>({0x3c00, 0xc000, 0x0001, 0x7c00})).data,
      (std::vector<double>{1, -2, std::ldexp(1, -24), HUGE_VAL}));
  EXPECT_EQ(read(header(">f8", "(1,)") + std::string("\x3f\xf8\0\0\0\0\0\0", 8)).data,
            (std::vector<double>{1.5}));
  EXPECT_EQ(read(header("<c8", "(1,)") + bytesOf<float>({1, -2})).data,
            (std::vector<double>{1, -2}));
  EXPECT_EQ(read(header("<c8", "(1,)") + bytesOf<float>({1, -2})).element, ElementKind::kComplex);
  EXPECT_EQ(read(header("|i1", "(2,)") + bytesOf<std::int8_t>({-1, 5})).data,
            (std::vector<double>{-1, 5}));
  EXPECT_EQ(read(header("<i2", "(1,)") + bytesOf<std::int16_t>({-300})).data,
            (std::vector<double>{-300}));
  EXPECT_EQ(read(header("<i4", "(1,)") + bytesOf<std::int32_t>({-70000})).data,
            (std::vector<double>{-70000}));
  EXPECT_EQ(read(header("<i8", "(1,)") + bytesOf<std::int64_t>({std::int64_t{1} << 53})).data,
            (std::vector<double>{0x1p53}));
  EXPECT_EQ(read(header("|u1", "(1,)") + bytesOf<std::uint8_t>({200})).data,
            (std::vector<double>{200}));
  EXPECT_EQ(read(header("|b1", "(2,)") + std::string("\1\0", 2)).data, (std::vector<double>{1, 0}));
  EXPECT_EQ(read(header("<u4", "(1,)") + bytesOf<std::uint32_t>({4000000000U})).data,
            (std::vector<double>{4e9}));
  EXPECT_EQ(read(header("<u8", "(1,)") + bytesOf<std::uint64_t>({7})).element,
            ElementKind::kInteger);
  EXPECT_EQ(read(header("<f8", "()") + bytesOf<double>({2})).shape, Shape{});
}

TEST_F(Npz, FortranOrderIsTurned) {
  // x[i][j][k] = 100 i + 10 j + k, the first index fastest.
  std::vector<double> numbers, expected;
  for (int k = 0; k < 2; ++k)
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) numbers.push_back(100 * i + 10 * j + k);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 2; ++k) expected.push_back(100 * i + 10 * j + k);
  EXPECT_EQ(read(header("<f8", "(2, 3, 2)", true) + bytesOf(numbers)).data, expected);
  EXPECT_EQ(read(header("<c16", "(1, 2)", true) + bytesOf<double>({1, 2, 3, 4})).data,
            (std::vector<double>{1, 2, 3, 4}));
}

TEST_F(Npz, WhatIsNotUnderstoodIsNamed) {
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(error("nonsense"), "not a NumPy array");
  has(error(header("<f8", "(2,)") + bytesOf<double>({1})), "8 bytes of data");
  has(error(header("<f8", "(2,)") + bytesOf<double>({1, 2, 3})), "24 bytes of data");
  has(error(header("|O", "(1,)")), "'|O'");
  has(error(header("<U3", "(1,)") + std::string(12, 'a')), "'<U3'");
  has(error(header("<i8", "(1,)") + bytesOf<std::int64_t>({(std::int64_t{1} << 53) + 1})), "2^53");
  has(error(header("<f8", "(99999999999, 99999999999)")), "too many elements");
  has(error(header("<f8", "(99999999999999999999,)")), "too large");
  has(error(header("<f8", "(a,)")), "tuple of sizes");
  has(error(std::string("\x93NUMPY\x09\x00\x01\x00 ", 11)), "version 9");
  has(error(std::string("\x93NUMPY\x01\x00\xff\xff{}", 12)), "ends inside its header");
  has(error(header("<f8", "(1,)").replace(header("<f8", "(1,)").find("descr"), 5, "other") +
            bytesOf<double>({1})),
      "unknown key");
  EXPECT_THROW(readNpz(path("empty.npz") + ".missing"), InputError);
}

TEST_F(Npz, DamagedArchivesAreInputErrors) {
  const Array a = array({64}, std::vector<double>(64, 3));
  const std::string file = path("d.npz");
  writeNpz(file, {{"a", &a}});
  std::ifstream in(file, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t cut = 0; cut < whole.size(); cut += 37) {
    const std::string part = path("cut.npz");
    std::ofstream(part, std::ios::binary) << whole.substr(0, cut);
    EXPECT_THROW(readNpz(part), InputError) << cut;
  }
  for (std::size_t i = 0; i < whole.size(); i += 5) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    const std::string part = path("changed.npz");
    std::ofstream(part, std::ios::binary) << changed;
    try {
      readNpz(part);  // what does not matter may be changed
    } catch (const InputError&) {
    }
  }
}

TEST_F(Npz, WhatCannotBeWrittenSaysSo) {
  const Array a = array({1}, {1});
  EXPECT_THROW(writeNpz("/nonexistent/directory/x.npz", {{"a", &a}}), std::runtime_error);
}

}  // namespace
}  // namespace shardproof::executor
