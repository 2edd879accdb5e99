// SPDX-License-Identifier: Apache-2.0
#include "report/layout.h"

#include <gtest/gtest.h>

#include <sstream>

#include "example_report.h"
#include "report/format.h"
#include "report/text.h"

namespace shardproof {
namespace {

TextStyle wide(std::size_t width, bool colour = false) {
  TextStyle style;
  style.width = width;
  style.colour = colour;
  return style;
}

TEST(Layout, NothingIsDoneUnasked) {
  const std::string text = std::string(500, 'x') + "\n  claim:       a b\n\n";
  EXPECT_EQ(laidOut(text, {}), text);
  EXPECT_EQ(laidOut("", wide(80)), "");
  EXPECT_EQ(laidOut("\n\n", wide(80)), "\n\n");
}

TEST(Layout, GoesOnBelowTheValue) {
  EXPECT_EQ(
      laidOut(label("  look at:     ", Tone::kLabel) + "one two three four five six\n", wide(32)),
      "  look at:     one two three\n               four five six\n");
  EXPECT_EQ(
      laidOut(label("Plan:   ", Tone::kHead) + "one two three four five six seven\n", wide(30)),
      "Plan:   one two three four\n        five six seven\n");
  EXPECT_EQ(
      laidOut(label("Cause 1 of 1:", Tone::kBad) + " one two three four five six\n", wide(30)),
      "Cause 1 of 1: one two three\n  four five six\n");
}

TEST(Layout, LongWordsAreCutAndNothingIsLost) {
  const std::string word(1000, 'w');
  const std::string text = laidOut("  claim:       " + word + "\n", wide(40));
  std::istringstream lines(text);
  std::string line;
  std::size_t seen = 0;
  while (std::getline(lines, line)) {
    EXPECT_LE(columns(line), 40u);
    seen += static_cast<std::size_t>(std::count(line.begin(), line.end(), 'w'));
  }
  EXPECT_EQ(seen, word.size());
}

TEST(Layout, CharactersOfSeveralBytesStayWhole) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ä";
  std::istringstream lines(laidOut(text, wide(30)));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(columns(line), 30u);
    const std::size_t first = line.find("\xc3\xa4");
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ((line.size() - first) % 2, 0u);
  }
}

TEST(Layout, WholeReportsFit) {
  for (const std::size_t width : {40u, 80u, 120u}) {
    std::ostringstream out;
    writeText(out, exampleReport(), wide(width));
    std::istringstream lines(out.str());
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns(line), width) << line;
  }
}

TEST(Layout, ColourIsOnLabelsOnly) {
  EXPECT_EQ(laidOut(label("EQUIVALENT:", Tone::kGood) + " plan a\n", wide(0, true)),
            "\x1b[1;32mEQUIVALENT:\x1b[0m plan a\n");
  EXPECT_EQ(laidOut(label("  ranks:       ", Tone::kLabel) + "0-3\n", wide(0, true)),
            "\x1b[36m  ranks:\x1b[0m       0-3\n");
  EXPECT_EQ(laidOut("plain\n", wide(0, true)), "plain\n");
  EXPECT_EQ(laidOut("EQUIVALENT: what a file is called\n", wide(0, true)),
            "EQUIVALENT: what a file is called\n");
  EXPECT_EQ(laidOut(label("Plan:", Tone::kHead) + " a\n", {}), "Plan: a\n");
  // Without colour there are no escape sequences, whatever the report says.
  Report report = exampleReport();
  report.defects[0].message = "\x1b[31mred\x07";
  std::ostringstream out;
  writeText(out, report, wide(80));
  EXPECT_EQ(out.str().find('\x1b'), std::string::npos);
  EXPECT_EQ(out.str().find('\x07'), std::string::npos);
}

Report manyCauses(std::size_t count) {
  Report report = exampleReport();
  const Defect defect = report.defects[0];
  report.defects.assign(count, defect);
  for (std::size_t i = 0; i < count; ++i) {
    Cause cause;
    cause.kind = "scaled";
    cause.sentence = "cause number " + std::to_string(i) + " `" + std::string(10000, 'n') + "`";
    cause.defects = {i};
    cause.ranks = {static_cast<std::int64_t>(i)};
    report.causes.push_back(std::move(cause));
  }
  return report;
}

TEST(TextReport, CausesAreFolded) {
  const Report report = manyCauses(20);
  const auto told = [&](const TextStyle& style) {
    std::ostringstream out;
    writeText(out, report, style);
    std::size_t count = 0;
    for (std::size_t at = out.str().find("\nCause "); at != std::string::npos;
         at = out.str().find("\nCause ", at + 1))
      ++count;
    return count;
  };
  TextStyle style;
  EXPECT_EQ(told(style), 3u);
  style.maxCauses = 7;
  EXPECT_EQ(told(style), 7u);
  style.verbose = true;
  EXPECT_EQ(told(style), 20u);
}

TEST(TextReport, TenThousandCausesWithLongNames) {
  const Report report = manyCauses(10000);
  std::ostringstream out;
  writeText(out, report, wide(80));
  EXPECT_LT(out.str().size(), 50000u);
  EXPECT_NE(out.str().find("and 9,997 more causes"), std::string::npos);
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(columns(line), 80u);
}

TEST(TextReport, InputErrorsNameTheirFileOnce) {
  const InputError one("a.json", "/x", "found y, expected z");
  EXPECT_EQ(inputErrorText(one, {}), "a.json: /x: found y, expected z");
  EXPECT_EQ(inputErrorText(InputError("a.json", "", "cannot open"), {}), "a.json: cannot open");
  const InputErrors several({one, InputError("a.json", "/w", "v"), InputError("b.json", "", "u")},
                            true);
  EXPECT_EQ(inputErrorText(several, {}),
            "a.json: 2 errors\n  /x: found y, expected z\n  /w: v\nb.json: 1 error\n  u\n  and "
            "more, which are not looked for");
}

}  // namespace
}  // namespace shardproof
