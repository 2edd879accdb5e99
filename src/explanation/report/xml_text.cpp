// SPDX-License-Identifier: Apache-2.0
#include "report/xml_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace shardproof {

std::string xmlText(const std::string& text) {
  const std::string utf8 =
      nlohmann::json::parse(
          nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>();
  std::string result;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const bool noCharacter =
        utf8.compare(i, 3, "\xef\xbf\xbe") == 0 || utf8.compare(i, 3, "\xef\xbf\xbf") == 0;
    if (noCharacter) {
      result += "\xef\xbf\xbd";
      i += 2;
    } else {
      result += byte < 0x20 && byte != '\n' && byte != '\t' ? '?' : utf8[i];
    }
  }
  return result;
}

std::string xmlSeconds(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

}  // namespace shardproof
