// SPDX-License-Identifier: Apache-2.0
#include "sweep/junit.h"

#include <pugixml.hpp>

#include "fakes.h"

namespace shardproof::sweep {
namespace {

pugi::xml_document parsed(const std::string& text) {
  pugi::xml_document document;
  EXPECT_TRUE(document.load_string(text.c_str()));
  return document;
}

TEST(JunitTest, EveryOutcomeHasItsElement) {
  Report partial = proved();
  partial.verdict = Verdict::kUndecided;
  partial.interrupted = true;
  const Sweep sweep = sweepOf({done("good", proved()), done("bad", exampleReport()),
                               done("known", exampleReport(), Verdict::kNotEquivalent),
                               done("lost", proved(), Verdict::kNotEquivalent), undecided("open"),
                               inState("skip", State::kSkipped, "why"),
                               inState("file", State::kInputError, "x.json: /: wrong"),
                               inState("dead", State::kCrashed, "signal 9"),
                               inState("later", State::kNotRun, ""), done("half", partial)});
  const pugi::xml_document document = parsed(junitText(sweep));
  const pugi::xml_node suite = document.child("testsuites").child("testsuite");
  EXPECT_EQ(suite.attribute("tests").as_int(), 10);
  EXPECT_EQ(suite.attribute("failures").as_int(), 2);
  EXPECT_EQ(suite.attribute("errors").as_int(), 5);
  EXPECT_EQ(suite.attribute("skipped").as_int(), 1);
  const std::vector<std::string> expected = {"",        "failure", "",      "failure", "error",
                                             "skipped", "error",   "error", "error",   "error"};
  std::vector<std::string> found;
  for (const pugi::xml_node test : suite.children("testcase"))
    found.emplace_back(test.first_child().name());
  EXPECT_EQ(found, expected);
  const pugi::xml_node bad =
      suite.find_child_by_attribute("testcase", "name", "bad").child("failure");
  EXPECT_STREQ(
      bad.attribute("message").value(),
      "not-equivalent, expected equivalent: the gradient of w is not what the model computes");
  EXPECT_STREQ(suite.find_child_by_attribute("testcase", "name", "open")
                   .child("error")
                   .attribute("message")
                   .value(),
               "no answer within 60 s");
}

TEST(JunitTest, NamesOfAnyBytesAreValidXml) {
  Result result = done("a<b>&\"' \x01 \xff \xef\xbf\xbf \xc3\xa9", exampleReport());
  result.text = "line 1\nline 2 ]]> \x1b[31m";
  const std::string text = junitText(sweepOf({result}));
  for (const char c : text)
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t')
        << static_cast<int>(c);
  EXPECT_EQ(text.find("&#"), std::string::npos)
      << "a character that XML 1.0 does not have, escaped";
  const pugi::xml_document document = parsed(text);
  const pugi::xml_node test = document.child("testsuites").child("testsuite").child("testcase");
  EXPECT_STREQ(test.attribute("name").value(), "a<b>&\"' ? \xef\xbf\xbd \xef\xbf\xbd \xc3\xa9");
  EXPECT_STREQ(test.child("failure").text().get(), "line 1\nline 2 ]]> ?[31m");
}

}  // namespace
}  // namespace shardproof::sweep
