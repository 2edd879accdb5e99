// SPDX-License-Identifier: Apache-2.0
#include "report/source_place.h"

#include <charconv>
#include <string_view>

namespace shardproof {

namespace {

// Takes ":12" from the end of `text`; 0: there is none.
int takeNumber(std::string_view& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) return 0;
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data() + colon + 1, end, number);
  if (error != std::errc() || last != end || number < 1) return 0;
  text = text.substr(0, colon);
  return number;
}

}  // namespace

std::optional<SourcePlace> sourcePlace(const std::string& location) {
  std::string_view rest = location;
  const int last = takeNumber(rest);
  if (last == 0) return std::nullopt;
  const int before = takeNumber(rest);
  // A file has an ending: "layer:3" is no place in one.
  const std::size_t slash = rest.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? rest : rest.substr(slash + 1);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  for (const char c : rest)
    if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
  SourcePlace place;
  place.file = rest;
  place.line = before > 0 ? before : last;
  place.column = before > 0 ? last : 0;
  return place;
}

}  // namespace shardproof
