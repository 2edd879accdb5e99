// SPDX-License-Identifier: Apache-2.0
#include "reader/json_stream.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "ir/error_list.h"
#include "ir/suggestions.h"
#include "reader/text_source.h"

namespace shardproof::reader {

namespace {

// The parser's handler (the concept nlohmann::json_sax, without its virtual calls).
class Handler {
 public:
  Handler(const std::string& file, StreamClient& client)
      : place_(file), document_(place_), client_(client), states_{StreamClient::kOutside} {}

  bool null() {
    return scalar([&](std::string_view key) { document_.addNull(key); });
  }
  bool boolean(bool b) {
    return scalar([&](std::string_view key) { document_.addBool(key, b); });
  }
  bool number_integer(std::int64_t n) {
    return scalar([&](std::string_view key) { document_.addInteger(key, n); });
  }
  bool number_unsigned(std::uint64_t n) {
    if (n <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return number_integer(static_cast<std::int64_t>(n));
    return number_float(0, std::to_string(n));
  }
  bool number_float(
      double, const std::string& text) {  // the double is rounded, the text is what was written
    return scalar([&](std::string_view key) { document_.addDecimal(key, text); });
  }
  bool string(const std::string& text) {
    return scalar([&](std::string_view key) { document_.addString(key, text); });
  }
  bool binary(nlohmann::json::binary_t&) { place_.fail("found binary data"); }
  bool start_object(std::size_t) { return start(true); }
  bool start_array(std::size_t) { return start(false); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(const std::string& k) {
    place_.key(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) {
    std::string_view reason = error.what();
    if (const std::size_t cut = reason.find("] "); cut != std::string_view::npos)
      reason.remove_prefix(cut + 2);  // its own error number
    place_.fail("not valid JSON at byte " + std::to_string(position) + ": " + std::string(reason) +
                ir::suggestText(reason));
  }

  ir::ErrorList& errors() { return errors_; }

 private:
  template <class Add>
  bool scalar(Add add) {
    place_.beginValue();
    if (collecting_) {
      add(place_.currentKey());
      return true;
    }
    document_.clear();
    add(place_.currentKey());
    give();
    return true;
  }

  bool start(bool object) {
    place_.beginValue();
    const std::string_view key = place_.currentKey();
    if (!collecting_) {
      const int state = client_.open(states_.back(), key, object, place_);
      if (state != StreamClient::kWhole) {
        states_.push_back(state);
        place_.enter(object);
        return true;
      }
      document_.clear();
      collecting_ = true;
    }
    document_.open(key, object);
    place_.enter(object);
    return true;
  }

  bool end() {
    place_.leave();
    if (!collecting_) {
      const int state = states_.back();
      states_.pop_back();
      errors_.attempt([&] { client_.close(state, place_); });
      return true;
    }
    if (document_.close()) {
      collecting_ = false;
      give();
    }
    return true;
  }

  // The next value is looked at whatever is wrong with this one; but a file of another format is
  // wrong everywhere.
  void give() {
    const bool right = errors_.attempt(
        [&] { client_.value(states_.back(), place_.currentKey(), document_.root()); });
    if (!right && states_.size() == 2 && place_.currentKey() == "format") errors_.throwIfAny();
  }

  Place place_;
  Document document_;
  StreamClient& client_;
  std::vector<int> states_;  // of the open containers that are shown one by one
  bool collecting_ = false;
  ir::ErrorList errors_;
};

}  // namespace

std::string readJson(const Input& input, StreamClient& client) {
  TextSource source(input);
  Handler handler(input.name, client);
  try {
    nlohmann::json::sax_parse(TextIterator(&source), TextIterator(), &handler);
  } catch (const InputErrors&) {
    throw;                             // these are all
  } catch (const InputError& error) {  // nothing can be read behind it
    handler.errors().add(error);
  }
  handler.errors().throwIfAny();
  return source.sha256();
}

}  // namespace shardproof::reader
