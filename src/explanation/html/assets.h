// SPDX-License-Identifier: Apache-2.0
// The page's files, embedded when the program is built (scripts/embed.cmake).
#pragma once

#include <string_view>

namespace shardproof::html {

extern const std::string_view kPageHtml;    // src/explanation/html/page/page.html
extern const std::string_view kPageCss;     // page.css
extern const std::string_view kPageScript;  // data.js, matrix.js, mesh.js, stage.js, page.js
extern const std::string_view kLibraries;   // jQuery, DataTables, D3, each below its licence
extern const std::string_view kLibraryCss;  // of DataTables

}  // namespace shardproof::html
