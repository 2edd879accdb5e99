// SPDX-License-Identifier: Apache-2.0
// The format of the arrays: NEP 1 of NumPy (https://numpy.org/neps/nep-0001-npy-format.html).
// libzip reads and writes the archive.
#include "executor/npz.h"

#include <zip.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "shardproof/error.h"

namespace shardproof::executor {
namespace {

static_assert(std::endian::native == std::endian::little,
              "arrays are written as they lie in memory");

constexpr std::int64_t kMostExact = std::int64_t{1} << 53;

struct CloseArchive {
  void operator()(zip_t* z) const { zip_discard(z); }
};
struct CloseEntry {
  void operator()(zip_file_t* f) const { zip_fclose(f); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;
using Entry = std::unique_ptr<zip_file_t, CloseEntry>;

std::string zipError(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

// --- reading ---

// The header is a Python dictionary of three known keys; only what NumPy writes is understood.
struct Header {
  std::string type;
  bool fortran = false;
  Shape shape;
};

class HeaderParser {
 public:
  explicit HeaderParser(const std::string& text) : text_(text) {}

  Header parse() {
    Header h;
    expect('{');
    bool type = false, order = false, shape = false;
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        h.type = quoted();
        type = true;
      } else if (key == "fortran_order") {
        h.fortran = truth();
        order = true;
      } else if (key == "shape") {
        h.shape = sizes();
        shape = true;
      } else {
        throw std::invalid_argument("the header has the unknown key '" + key + "'");
      }
      accept(',');
    }
    if (!type || !order || !shape)
      throw std::invalid_argument("the header lacks 'descr', 'fortran_order' or 'shape'");
    return h;
  }

 private:
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }
  bool accept(char ch) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != ch) return false;
    ++at_;
    return true;
  }
  void expect(char ch) {
    if (!accept(ch))
      throw std::invalid_argument(std::string("the header is not understood: expected '") + ch +
                                  "' at character " + std::to_string(at_) +
                                  " (structured types are not supported)");
  }
  std::string quoted() {
    blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') expect('\'');
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string::npos) throw std::invalid_argument("the header ends inside a text");
    const std::string word = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return word;
  }
  bool truth() {
    blanks();
    for (const bool value : {true, false}) {
      const std::string word = value ? "True" : "False";
      if (text_.compare(at_, word.size(), word) == 0) {
        at_ += word.size();
        return value;
      }
    }
    throw std::invalid_argument("'fortran_order' is neither True nor False");
  }
  Shape sizes() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      blanks();
      std::int64_t n = 0;
      const std::size_t start = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, text_[at_] - '0', &n))
          throw std::invalid_argument("a size is too large");
        ++at_;
      }
      if (at_ == start) throw std::invalid_argument("'shape' is not a tuple of sizes");
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // of Python 2
      shape.push_back(n);
      accept(',');
    }
    return shape;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

double half(std::uint16_t bits) {  // IEEE 754 binary16
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

template <class N>
double numberAt(const char* p, bool swapped) {
  char bytes[sizeof(N)];
  std::memcpy(bytes, p, sizeof(N));
  if (swapped) std::reverse(bytes, bytes + sizeof(N));
  N n;
  std::memcpy(&n, bytes, sizeof(N));
  if constexpr (std::is_integral_v<N> && sizeof(N) == 8) {
    const bool exact = std::is_signed_v<N> ? static_cast<std::int64_t>(n) <= kMostExact &&
                                                 static_cast<std::int64_t>(n) >= -kMostExact
                                           : static_cast<std::uint64_t>(n) <=
                                                 static_cast<std::uint64_t>(kMostExact);
    if (!exact)
      throw std::invalid_argument("found " + std::to_string(n) +
                                  ", expected whole numbers up to 2^53 in magnitude");
  }
  return static_cast<double>(n);
}

struct Type {
  ElementKind element = ElementKind::kReal;
  std::size_t size = 0;  // of one number; a complex element has two
  double (*read)(const char*, bool) = nullptr;
};

Type typeOf(const std::string& name) {
  const std::string kind = name.size() > 1 ? name.substr(1) : "";
  const auto is = [&](const char* k) { return kind == k; };
  if (is("f8")) return {ElementKind::kReal, 8, numberAt<double>};
  if (is("f4")) return {ElementKind::kReal, 4, numberAt<float>};
  if (is("f2"))
    return {ElementKind::kReal, 2, [](const char* p, bool swapped) {
              return half(static_cast<std::uint16_t>(numberAt<std::uint16_t>(p, swapped)));
            }};
  if (is("c16")) return {ElementKind::kComplex, 8, numberAt<double>};
  if (is("c8")) return {ElementKind::kComplex, 4, numberAt<float>};
  if (is("i1")) return {ElementKind::kInteger, 1, numberAt<std::int8_t>};
  if (is("i2")) return {ElementKind::kInteger, 2, numberAt<std::int16_t>};
  if (is("i4")) return {ElementKind::kInteger, 4, numberAt<std::int32_t>};
  if (is("i8")) return {ElementKind::kInteger, 8, numberAt<std::int64_t>};
  if (is("u1") || is("b1")) return {ElementKind::kInteger, 1, numberAt<std::uint8_t>};
  if (is("u2")) return {ElementKind::kInteger, 2, numberAt<std::uint16_t>};
  if (is("u4")) return {ElementKind::kInteger, 4, numberAt<std::uint32_t>};
  if (is("u8")) return {ElementKind::kInteger, 8, numberAt<std::uint64_t>};
  throw std::invalid_argument("found elements of type '" + name +
                              "', expected booleans, integers, floats or complex numbers");
}

// Where an element in row-major order lies if the first dimension is the fastest.
std::size_t fortranOffset(const Shape& shape, std::size_t element) {
  std::size_t offset = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto n = static_cast<std::size_t>(shape[d]);
    std::size_t stride = 1;
    for (std::size_t k = 0; k < d; ++k) stride *= static_cast<std::size_t>(shape[k]);
    offset += element % n * stride;
    element /= n;
  }
  return offset;
}

Array parseNpy(const std::string& bytes) {
  if (bytes.size() < 10 || bytes.compare(0, 6, "\x93NUMPY") != 0)
    throw std::invalid_argument("is not a NumPy array (.npy)");
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  const std::size_t wide = byte(6) >= 2 ? 4 : 2;
  if (byte(6) < 1 || byte(6) > 3)
    throw std::invalid_argument("has version " + std::to_string(byte(6)) +
                                " of the .npy format, expected 1 to 3");
  std::size_t length = 0;
  if (bytes.size() < 8 + wide) throw std::invalid_argument("ends inside its header");
  for (std::size_t i = wide; i-- > 0;) length = length << 8 | byte(8 + i);
  const std::size_t start = 8 + wide;
  if (length > bytes.size() - start) throw std::invalid_argument("ends inside its header");
  const std::string text = bytes.substr(start, length);
  const Header header = HeaderParser(text).parse();
  const Type type = typeOf(header.type);
  const bool swapped = header.type[0] == '>';
  Array array;
  array.shape = header.shape;
  array.element = type.element;
  const std::size_t planes = type.element == ElementKind::kComplex ? 2 : 1;
  std::size_t count = planes, all = 0;
  for (const std::int64_t n : header.shape)
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(n), &count))
      throw std::invalid_argument("has too many elements");
  if (__builtin_mul_overflow(count, type.size, &all) || all != bytes.size() - start - length)
    throw std::invalid_argument("has " + std::to_string(bytes.size() - start - length) +
                                " bytes of data, which is not what its shape and type need");
  array.data.resize(count);
  const char* data = bytes.data() + start + length;
  if (!header.fortran) {
    for (std::size_t i = 0; i < count; ++i)
      array.data[i] = type.read(data + i * type.size, swapped);
    return array;
  }
  for (std::size_t i = 0; i < count; i += planes) {
    const std::size_t offset = fortranOffset(header.shape, i / planes) * planes;
    for (std::size_t k = 0; k < planes; ++k)
      array.data[i + k] = type.read(data + (offset + k) * type.size, swapped);
  }
  return array;
}

}  // namespace

std::map<std::string, Array> readNpz(const std::string& file) {
  int code = 0;
  const Archive archive(zip_open(file.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (!archive) throw InputError(file, "", "cannot be read as a .npz file: " + zipError(code));
  std::map<std::string, Array> arrays;
  const zip_int64_t entries = zip_get_num_entries(archive.get(), 0);
  for (zip_int64_t i = 0; i < entries; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    zip_stat_init(&stat);
    if (zip_stat_index(archive.get(), index, 0, &stat) != 0 || (stat.valid & ZIP_STAT_NAME) == 0 ||
        (stat.valid & ZIP_STAT_SIZE) == 0)
      throw InputError(file, "",
                       "entry " + std::to_string(i) +
                           " of the archive cannot be read: " + zip_strerror(archive.get()));
    std::string name = stat.name;
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    try {
      const Entry entry(zip_fopen_index(archive.get(), index, 0));
      if (!entry) throw std::invalid_argument(zip_strerror(archive.get()));
      std::string bytes;
      // What is not there cannot be allocated for: sizes in the archive are only claims.
      for (;;) {
        constexpr std::size_t kBlock = std::size_t{1} << 24;
        const std::size_t had = bytes.size();
        const std::size_t block = std::min<std::size_t>(kBlock, stat.size - had + 1);
        bytes.resize(had + block);
        const zip_int64_t got = zip_fread(entry.get(), bytes.data() + had, block);
        if (got < 0) throw std::invalid_argument(zip_file_strerror(entry.get()));
        bytes.resize(had + static_cast<std::size_t>(got));
        if (got == 0 || bytes.size() > stat.size) break;
      }
      if (bytes.size() != stat.size)
        throw std::invalid_argument("has " + std::to_string(bytes.size()) +
                                    " bytes, the archive says " + std::to_string(stat.size));
      if (!arrays.emplace(name, parseNpy(bytes)).second)
        throw std::invalid_argument("is there twice");
    } catch (const std::invalid_argument& error) {
      throw InputError(file, "/" + name, std::string("the array \"") + name + "\" " + error.what());
    }
  }
  return arrays;
}

void writeNpz(const std::string& file, const std::map<std::string, const Array*>& arrays) {
  int code = 0;
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error(file + ": cannot be written: " + why);
  };
  Archive archive(zip_open(file.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code));
  if (!archive) fail(zipError(code));
  // Both live until the archive is closed: only then is it written.
  std::vector<std::unique_ptr<std::string>> headers;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> integers;
  for (const auto& [name, array] : arrays) {
    const bool whole = array->element == ElementKind::kInteger &&
                       std::all_of(array->data.begin(), array->data.end(), [](double x) {
                         return std::abs(x) <= static_cast<double>(kMostExact);
                       });
    std::string shape = "(";
    for (const std::int64_t n : array->shape) shape += std::to_string(n) + ",";
    std::string header = std::string("{'descr': '") +
                         (whole                                     ? "<i8"
                          : array->element == ElementKind::kComplex ? "<c16"
                                                                    : "<f8") +
                         "', 'fortran_order': False, 'shape': " + shape + "), }";
    while ((header.size() + 11) % 64 != 0) header += ' ';
    header += '\n';
    auto text = std::make_unique<std::string>(std::string("\x93NUMPY\x01\x00", 8));
    *text += static_cast<char>(header.size() & 255);
    *text += static_cast<char>(header.size() >> 8);
    *text += header;
    const void* data = array->data.data();
    if (whole) {
      integers.push_back(std::make_unique<std::vector<std::int64_t>>(array->data.size()));
      std::transform(array->data.begin(), array->data.end(), integers.back()->begin(),
                     [](double x) { return static_cast<std::int64_t>(x); });
      data = integers.back()->data();
    }
    zip_buffer_fragment_t fragments[2];
    fragments[0].data = reinterpret_cast<zip_uint8_t*>(text->data());
    fragments[0].length = text->size();
    fragments[1].data = static_cast<zip_uint8_t*>(const_cast<void*>(data));
    fragments[1].length = array->data.size() * 8;
    headers.push_back(std::move(text));
    zip_source_t* source = zip_source_buffer_fragment(archive.get(), fragments, 2, 0);
    if (source == nullptr) fail(zip_strerror(archive.get()));
    const zip_int64_t index =
        zip_file_add(archive.get(), (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      fail("\"" + name + "\": " + zip_strerror(archive.get()));
    }
    if (zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(index), ZIP_CM_STORE,
                                 0) != 0)
      fail(zip_strerror(archive.get()));
  }
  if (zip_close(archive.get()) != 0) fail(zip_strerror(archive.get()));
  static_cast<void>(archive.release());  // closed
}

}  // namespace shardproof::executor
