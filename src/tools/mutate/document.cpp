// SPDX-License-Identifier: Apache-2.0
#include "mutate/document.h"

#include <zlib.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <new>
#include <string_view>
#include <vector>

#include "reader/text_source.h"
#include "report/file.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"
#include "util/json_pointer.h"
#include "writer/json_writer.h"

namespace shardproof::mutate {
namespace {

// The parser's handler (the concept nlohmann::json_sax). nlohmann's own makes doubles of decimals.
class Builder {
 public:
  explicit Builder(std::string file) : file_(std::move(file)) {}
  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool b) { return add(b); }
  bool number_integer(std::int64_t n) { return add(n); }
  bool number_unsigned(std::uint64_t n) { return add(n); }
  bool number_float(double, const std::string& text) { return add(decimal(text)); }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& k) {
    key_ = std::move(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    throw InputError(file_, "", "not valid JSON at byte " + std::to_string(position));
  }

 private:
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& in = *open_.back();
    if (in.is_array()) {
      in.push_back(std::move(value));
      return &in.back();
    }
    // Without the search for the key that operator[] makes: plans have thousands of tensors in one
    // object.
    std::vector<Json::object_t::value_type>& members = in.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() >= 64) throw InputError(file_, "", "nested too deeply for a plan");
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string file_, key_;
  Json root_;
  std::vector<Json*> open_;  // containers are complete before their parent gets another member, so
                             // these stay valid
};

void write(JsonWriter& out, const Json& value, int depth, std::string_view key) {
  const bool lines = depth == 0 || key == "programs" || key == "tensors" || key == "nodes" ||
                     (depth == 1 && key == "lineage");
  const auto style = lines ? JsonWriter::kLines : JsonWriter::kInline;
  switch (value.type()) {
    case Json::value_t::object:
      out.beginObject(style);
      for (const auto& [name, member] : value.items()) {
        out.key(name);
        write(out, member, depth + 1, depth <= 2 ? std::string_view(name) : std::string_view());
      }
      out.endObject();
      break;
    case Json::value_t::array:
      out.beginList(style);
      for (const Json& element : value) write(out, element, depth + 1, "");
      out.endList();
      break;
    case Json::value_t::binary: {
      const auto& text = value.get_binary();
      out.raw(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
      break;
    }
    case Json::value_t::string:
      out.text(value.get_ref<const std::string&>());
      break;
    default:
      out.raw(value.dump());
  }
}

std::string compressed(const std::string& text) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK)
    throw std::bad_alloc();
  std::string out;
  std::vector<Bytef> buffer(256 * 1024);
  std::size_t given = 0;
  int result = Z_OK;
  do {
    if (stream.avail_in == 0 && given < text.size()) {
      const std::size_t n =
          std::min<std::size_t>(text.size() - given, std::numeric_limits<uInt>::max());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data() + given));
      stream.avail_in = static_cast<uInt>(n);
      given += n;
    }
    stream.next_out = buffer.data();
    stream.avail_out = static_cast<uInt>(buffer.size());
    result = deflate(&stream, given == text.size() ? Z_FINISH : Z_NO_FLUSH);
    out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
  } while (result != Z_STREAM_END);
  deflateEnd(&stream);
  return out;
}

}  // namespace

Json readDocument(const std::string& file) {
  reader::TextSource source(file);
  Builder builder(file);
  Json::sax_parse(reader::TextIterator(&source), reader::TextIterator(), &builder);
  return builder.take();
}

std::string documentText(const Json& document) {
  JsonWriter out;
  write(out, document, 0, "");
  return out.take();
}

void writeDocument(const std::string& file, const std::string& text) {
  writeFileAtomically(file, file.ends_with(".gz") ? compressed(text) : text);
}

namespace {

// The first integer beyond what bugs can compute with, and where it is; constants' values and seeds
// are only copied.
const Json* tooLarge(const Json& value, std::string& pointer) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (value.is_number_unsigned() ? value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMost)
                                 : value.is_number_integer() && value.get<std::int64_t>() < -kMost)
    return &value;
  if (!value.is_structured()) return nullptr;
  std::size_t i = 0;
  for (auto it = value.begin(); it != value.end(); ++it, ++i) {
    if (value.is_object() && (it.key() == "value" || it.key() == "seed")) continue;
    if (const Json* found = tooLarge(*it, pointer)) {
      pointer.insert(0, "/" + (value.is_object() ? escapePointer(it.key()) : std::to_string(i)));
      return found;
    }
  }
  return nullptr;
}

}  // namespace

void checkSizes(const Json& plan, const std::string& file) {
  std::string pointer;
  if (const Json* found = tooLarge(plan, pointer))
    throw InputError(
        file, pointer,
        "found " + found->dump() + ", expected at most 2^40 in a plan that is to be mutated");
  std::int64_t ranks = 1;
  for (const Json& axis : plan.at("mesh")) {
    const auto size = axis.at(1).get<std::int64_t>();
    if (size < 1 || size > kMaxRanks || (ranks *= size) > kMaxRanks) {
      throw InputError(file, "/mesh",
                       "found " + plan.at("mesh").dump() + ", expected at most " +
                           std::to_string(kMaxRanks) + " ranks");
    }
  }
  if (!plan.contains("microbatches")) return;
  // A node for all microbatches may be written once for each.
  constexpr std::int64_t kMostMicrobatches = 1 << 14;
  const auto count = plan.at("microbatches").get<std::int64_t>();
  if (count < 1 || count > kMostMicrobatches)
    throw InputError(file, "/microbatches",
                     "found " + std::to_string(count) + ", expected 1 to " +
                         std::to_string(kMostMicrobatches) + " in a plan that is to be mutated");
}

Json decimal(const std::string& text) {
  return Json::binary(std::vector<std::uint8_t>(text.begin(), text.end()));
}

bool isNumber(const Json& value) { return value.is_number() || value.is_binary(); }

double numberOf(const Json& value) {
  if (!value.is_binary()) return value.get<double>();
  const auto& text = value.get_binary();
  const char* begin = reinterpret_cast<const char*>(text.data());
  double number = 0;
  std::from_chars(begin, begin + text.size(), number);
  return number;
}

Json scaled(const Json& value, std::int64_t factor, std::int64_t divisor) {
  if (value.is_number_integer()) {
    const std::int64_t n = value.get<std::int64_t>();
    if (n % divisor == 0) return n / divisor * factor;
  }
  char digits[32];
  const double number =
      numberOf(value) * static_cast<double>(factor) / static_cast<double>(divisor);
  return decimal({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

}  // namespace shardproof::mutate
