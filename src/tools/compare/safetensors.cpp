// SPDX-License-Identifier: Apache-2.0
#include "compare/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

// A size or an offset. Throws InputError.
std::size_t natural(const nlohmann::json& value, const std::string& file,
                    const std::string& place) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > (std::uint64_t{1} << 62))
    throw InputError(file, place, "found " + value.dump() + ", expected a number from 0 to 2^62");
  return value.get<std::size_t>();
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : TensorFile(path), file_(path, "safetensors") {
  readHeader();
}

void SafetensorsFile::readHeader() {
  const std::byte* bytes = file_.bytes();
  const std::size_t size = file_.size();
  std::uint64_t length = 0;
  if (size < sizeof length)
    throw InputError(path_, "byte 0",
                     "found a file of " + std::to_string(size) +
                         " bytes, expected 8 bytes with the length of the header");
  std::memcpy(&length, bytes, sizeof length);
  if (length > kMostHeader || length > size - sizeof length)
    throw InputError(path_, "byte 0",
                     "found a header of " + std::to_string(length) + " bytes in a file of " +
                         std::to_string(size) + " bytes, expected at most " +
                         std::to_string(std::min(kMostHeader, size - sizeof length)));
  const char* text = reinterpret_cast<const char*>(bytes) + sizeof length;
  const std::byte* data = bytes + sizeof length + length;
  const std::size_t available = size - sizeof length - length;
  nlohmann::json header;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  try {
    std::vector<std::set<std::string>> seen;  // the keys of the objects that are open
    header = nlohmann::json::parse(
        text, text + length, [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          using Event = nlohmann::json::parse_event_t;
          if (event == Event::object_start) seen.emplace_back();
          if (event == Event::object_end) seen.pop_back();
          if (event == Event::key && !seen.back().insert(parsed.get<std::string>()).second)
            throw InputError(path_, "header/" + parsed.get<std::string>(), "is there twice");
          return true;
        });
  } catch (const nlohmann::json::exception& error) {
    throw InputError(path_, "header", std::string("is no JSON: ") + error.what());
  }
  if (!header.is_object())
    throw InputError(path_, "header",
                     "found " + std::string(header.type_name()) + ", expected a JSON object");
  for (const auto& [name, value] : header.items()) {
    const std::string place = "header/" + name;
    if (name == "__metadata__") {
      if (!value.is_object()) throw InputError(path_, place, "expected an object of strings");
      for (const auto& [key, text_] : value.items()) {
        if (!text_.is_string())
          throw InputError(path_, place + "/" + key,
                           "found " + std::string(text_.type_name()) + ", expected a string");
        metadata_[key] = text_.get<std::string>();
      }
      continue;
    }
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets"))
      throw InputError(path_, place, "expected an object with dtype, shape and data_offsets");
    const nlohmann::json &dtype = value["dtype"], &shape = value["shape"],
                         &offsets = value["data_offsets"];
    const auto known =
        dtype.is_string() ? dtypeNamed(dtype.get_ref<const std::string&>()) : std::nullopt;
    if (!known)
      throw InputError(path_, place + "/dtype",
                       "found " + dtype.dump() +
                           ", expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL, or an integer "
                           "of 8 to 64 bits (I64, U8, ...)");
    if (!shape.is_array()) throw InputError(path_, place + "/shape", "expected a list of sizes");
    Stored tensor;
    tensor.dtype = *known;
    for (const nlohmann::json& n : shape)
      tensor.shape.push_back(static_cast<std::int64_t>(natural(n, path_, place + "/shape")));
    if (!offsets.is_array() || offsets.size() != 2)
      throw InputError(path_, place + "/data_offsets", "expected [begin, end]");
    const std::size_t begin = natural(offsets[0], path_, place + "/data_offsets"),
                      end = natural(offsets[1], path_, place + "/data_offsets");
    const auto count = elementsOf(tensor.shape, kMostElements);
    if (begin > end || end > available)
      throw InputError(path_, place + "/data_offsets",
                       "found [" + std::to_string(begin) + ", " + std::to_string(end) +
                           "], expected a range within the " + std::to_string(available) +
                           " bytes of data: the file may have been cut off");
    if (!count || *count > available || *count * bytesOfElement(*known) != end - begin)
      throw InputError(path_, place + "/data_offsets",
                       "found " + std::to_string(end - begin) + " bytes, expected " +
                           (count ? std::to_string(*count) : std::string("more than 2^40")) +
                           " elements of " + std::to_string(bytesOfElement(*known)) + " bytes");
    tensor.count = *count;
    tensor.data = data + begin;
    tensors_.emplace(name, std::move(tensor));
    ranges.emplace_back(begin, end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::size_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at)
      throw InputError(path_, "header",
                       "found elements from byte " + std::to_string(begin) + " on, expected " +
                           std::to_string(at) + ": the data has a hole, or tensors overlap");
    at = end;
  }
  if (at != available)
    throw InputError(
        path_, "header",
        "describes " + std::to_string(at) + " bytes of data, found " + std::to_string(available));
}

}  // namespace shardproof::compare
