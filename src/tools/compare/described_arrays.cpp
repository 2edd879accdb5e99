// SPDX-License-Identifier: Apache-2.0
#include "compare/described_arrays.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::array<std::pair<std::string_view, Dtype>, 12> kTypes = {{{"<f8", Dtype::kF64},
                                                                        {"<f4", Dtype::kF32},
                                                                        {"<f2", Dtype::kF16},
                                                                        {"|b1", Dtype::kBool},
                                                                        {"|i1", Dtype::kI8},
                                                                        {"|u1", Dtype::kU8},
                                                                        {"<i2", Dtype::kI16},
                                                                        {"<u2", Dtype::kU16},
                                                                        {"<i4", Dtype::kI32},
                                                                        {"<u4", Dtype::kU32},
                                                                        {"<i8", Dtype::kI64},
                                                                        {"<u8", Dtype::kU64}}};

// The header of a .npy file: a Python dictionary of three entries.
class ArrayHeader {
 public:
  ArrayHeader(std::string_view text, const std::string& path) : text_(text), path_(path) {
    expect('{');
    while (!next('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") descr = quoted();
      else if (key == "fortran_order") isFortran = word() == "True";
      else if (key == "shape") readShape();
      else fail("found the entry " + key + ", expected descr, fortran_order and shape");
      ++entries_;
      if (!next(',')) {
        expect('}');
        break;
      }
    }
    if (entries_ != 3) fail("expected the entries descr, fortran_order and shape, once each");
  }

  std::string descr;
  bool isFortran = false;
  std::vector<std::int64_t> shape;

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(path_, "header", message);
  }

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool next(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!next(c)) fail("expected '" + std::string(1, c) + "' at byte " + std::to_string(at_));
  }
  std::string quoted() {
    expect('\'');
    const std::size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) fail("a text has no end; expected descr like '<f4'");
    const std::string found(text_.substr(at_, end - at_));
    at_ = end + 1;
    return found;
  }
  std::string word() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    std::string found(text_.substr(begin, at_ - begin));
    if (found != "True" && found != "False")
      fail("found fortran_order " + found + ", expected True or False");
    return found;
  }
  void readShape() {
    expect('(');
    while (!next(')')) {
      skip();
      std::int64_t size = 0;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) fail("shape: expected sizes that are not negative");
      at_ += static_cast<std::size_t>(end - begin);
      shape.push_back(size);
      if (!next(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0, entries_ = 0;
};

Dtype dtypeOf(const std::string& descr, const std::string& dtype, const std::string& path) {
  if (!dtype.empty()) {
    const auto known = dtypeNamed(dtype);
    const std::string_view end =
        std::string_view(descr).substr(std::min<std::size_t>(1, descr.size()));
    // Bits of an element: void, or an unsigned integer.
    if (known && (end == "V" + std::to_string(bytesOfElement(*known)) ||
                  end == "u" + std::to_string(bytesOfElement(*known))))
      return *known;
    throw InputError(path, "header/descr",
                     "found '" + descr + "', and dtype " + dtype +
                         " in the description; expected " +
                         "unsigned integers or void (V) of as many bytes");
  }
  const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const auto& type) { return type.first == descr; });
  if (known == kTypes.end())
    throw InputError(path, "header/descr",
                     "found '" + descr +
                         "', expected little-endian numbers or truth values; for elements that "
                         "NumPy does not know, give their dtype in the description (\"BF16\")");
  return known->second;
}

std::string textOf(const nlohmann::json& json, const char* key, const std::string& otherwise,
                   const std::string& path, const std::string& place) {
  if (!json.contains(key)) return otherwise;
  if (!json[key].is_string())
    throw InputError(path, place + "/" + key, "found " + json[key].dump() + ", expected a string");
  return json[key].get<std::string>();
}

}  // namespace

Stored arrayOf(const MappedFile& file, const std::string& path, const std::string& dtype) {
  const std::size_t size = file.size();
  const auto* text = reinterpret_cast<const char*>(file.bytes());
  if (size < 12 || std::string_view(text, kMagic.size()) != kMagic)
    throw InputError(path, "byte 0", "is no file of NumPy, expected .npy as numpy.save writes it");
  const bool isLong = text[kMagic.size()] != 1;  // since version 2
  const std::size_t begin = isLong ? 12 : 10;
  std::uint32_t length = 0;
  std::memcpy(&length, text + 8, isLong ? 4 : 2);
  if (length > kMostHeader || length > size - begin)
    throw InputError(path, "byte 8",
                     "found a header of " + std::to_string(length) + " bytes in a file of " +
                         std::to_string(size) + " bytes: the file may have been cut off");
  const ArrayHeader header(std::string_view(text + begin, length), path);
  Stored stored;
  stored.dtype = dtypeOf(header.descr, dtype, path);
  stored.shape = header.shape;
  if (header.isFortran && header.shape.size() > 1)
    throw InputError(path, "header/fortran_order",
                     "found True, expected rows first: numpy.ascontiguousarray before numpy.save");
  const auto count = elementsOf(header.shape, kMostElements);
  const std::size_t available = size - begin - length;
  if (!count || *count > available || *count * bytesOfElement(stored.dtype) != available)
    throw InputError(path, "header/shape",
                     "found " + std::to_string(available) + " bytes of elements, expected " +
                         (count ? std::to_string(*count) : std::string("more than 2^40")) +
                         " elements of " + std::to_string(bytesOfElement(stored.dtype)) + " bytes");
  stored.count = *count;
  stored.data = file.bytes() + begin + length;
  return stored;
}

DescribedArrays::DescribedArrays(const std::string& path) : TensorFile(path) {
  const MappedFile description(path, "JSON");
  const auto* text = reinterpret_cast<const char*>(description.bytes());
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text, text + description.size());
  } catch (const nlohmann::json::exception& error) {
    throw InputError(path, "", std::string("is no JSON: ") + error.what());
  }
  if (!json.is_object() || !json.contains("tensors") || !json["tensors"].is_object())
    throw InputError(path, "tensors", "is missing, expected an object: the description of a trace");
  metadata_["format"] = textOf(json, "format", "", path, "");
  std::map<std::string, const SafetensorsFile*> open;
  for (const auto& [key, tensor] : json["tensors"].items()) {
    const std::string place = "tensors/" + key;
    if (!tensor.is_object()) throw InputError(path, place, "expected an object");
    const std::string name = textOf(tensor, "file", "", path, place);
    const fs::path relative(name);
    if (name.empty() || relative.is_absolute() ||
        std::find(relative.begin(), relative.end(), "..") != relative.end())
      throw InputError(path, place + "/file",
                       "found \"" + name + "\", expected the name of a file below this folder");
    const std::string where = (fs::path(path).parent_path() / relative).string();
    if (relative.extension() == ".npy") {
      arrays_.push_back(std::make_unique<MappedFile>(where, ".npy"));
      const std::string dtype = textOf(tensor, "dtype", "", path, place);
      tensors_.emplace(key, arrayOf(*arrays_.back(), where, dtype));
      continue;
    }
    if (!open.contains(where)) {
      files_.push_back(std::make_unique<SafetensorsFile>(where));
      open[where] = files_.back().get();
    }
    const std::string stored = textOf(tensor, "key", key, path, place);
    const auto found = open[where]->tensors().find(stored);
    if (found == open[where]->tensors().end())
      throw InputError(path, place + "/key", "found " + stored + ", which is not in " + where);
    tensors_.emplace(key, found->second);
  }
  metadata_["trace"] = json.dump();
}

}  // namespace shardproof::compare
