// SPDX-License-Identifier: Apache-2.0
#include "html/html.h"

#include <zlib.h>

#include <stdexcept>
#include <string_view>

#include "html/assets.h"
#include "html/data.h"
#include "util/base64.h"

namespace shardproof {

namespace {

// The browser gunzips it: a plan of 30,000 stages is some 20 MB of JSON.
std::string compressed(const std::string& text) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  if (deflateInit2(&stream, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("HTML report: zlib cannot be set up");
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool done =
      text.size() < (std::size_t{1} << 31) && deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (!done) throw std::runtime_error("HTML report: more than 2 GB of data");
  return out;
}

void put(std::string& page, std::string_view mark, std::string_view text) {
  const std::size_t at = page.find(mark);
  if (at == std::string::npos)
    throw std::logic_error("HTML report: no place for " + std::string(mark));
  page.replace(at, mark.size(), text);
}

}  // namespace

std::string htmlText(const Report& report, const Problem& problem, int exitCode) {
  using Json = nlohmann::ordered_json;
  const std::string data = html::pageData(report, problem, exitCode)
                               .dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string page(html::kPageHtml);
  put(page, "/*LIBRARY-CSS*/", html::kLibraryCss);
  put(page, "/*CSS*/", html::kPageCss);
  // Base64 has no character that HTML or a script could take for anything else.
  put(page, "DATA-BASE64", base64(compressed(data)));
  put(page, "/*LIBRARIES*/", html::kLibraries);
  put(page, "/*SCRIPT*/", html::kPageScript);
  return page;
}

}  // namespace shardproof
