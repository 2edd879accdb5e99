// SPDX-License-Identifier: Apache-2.0
// Stages that another machine proves: the list of them, and what is proved of it.
#include "verify/open_stages.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cache/cache_file.h"
#include "cache/small_stage.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

std::set<std::string> smallForms() {
  return {test::formOf(test::cut(test::smallDraft(), 2)),
          test::formOf(test::cut(test::smallDraft(), 3))};
}

OpenStagesFile readList(const std::string& text) {
  std::istringstream in(text);
  return readOpenStages(in, "list");
}

TEST(OpenStages, WhatIsLookedUpInVainIsListedAndEndsTheRun) {
  MemoryStore known;
  const std::set<std::string> forms = smallForms();
  known.add(*forms.begin(), Checker::kAuto, {Method::kNormalForm, {}});
  std::atomic<bool> cancel = false;
  OpenStages open(&known, cancel);
  EXPECT_TRUE(open.find(*forms.begin(), Checker::kAuto));
  EXPECT_FALSE(cancel);
  EXPECT_FALSE(open.find(*forms.rbegin(), Checker::kAuto));
  EXPECT_FALSE(open.find(*forms.rbegin(), Checker::kAuto));
  EXPECT_TRUE(cancel);
  EXPECT_EQ(open.forms(), std::set<std::string>{*forms.rbegin()});
}

TEST(OpenStages, AListIsReadBackAndADamagedOneIsRefused) {
  const std::set<std::string> forms = smallForms();
  const std::string text = openStagesText(forms, Checker::kZ3);
  const OpenStagesFile read = readList(text);
  EXPECT_EQ(read.checker, Checker::kZ3);
  EXPECT_EQ(std::set<std::string>(read.forms.begin(), read.forms.end()), forms);
  EXPECT_TRUE(readList(openStagesText({}, Checker::kAuto)).forms.empty());
  const auto refused = [](const std::string& list, const std::string& why) {
    try {
      readList(list);
      ADD_FAILURE() << "read: " << why;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused("", "expected \"shardproof-open-stages 1\"");
  std::string other = text;
  other.replace(other.find("sources"), 7, "SOURCES");
  refused(other, "another version");
  refused(text.substr(0, text.size() - 2), "the end of a line");
  refused(text + "12345678901234567890\n", "found no length");
  refused(text + "-1\n", "found no length");
  refused(text + "9\nshort\n", "expected 9 bytes");
}

TEST(OpenStages, OnlyProofsOfTheListedStagesAreKept) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.write("cache.db", "");
  const std::string right = test::formOf(test::cut(test::smallDraft(), 2)),
                    known = test::formOf(test::cut(test::smallDraft(), 3)),
                    wrong = test::formOf(test::cut(test::wrongDraft(), 3));
  std::string damaged = right;
  damaged.resize(damaged.size() / 2);
  CacheFileStore store(file);
  store.add(known, Checker::kAuto, {Method::kNormalForm, {}});
  store.flush();
  OpenStagesFile open;
  open.forms = {wrong, right, known, damaged, "no form"};
  const ProveOpenResult result = proveOpenStages(open, store, PoolOptions());
  EXPECT_EQ(result.proved, 1u);
  EXPECT_EQ(result.known, 1u);
  EXPECT_EQ(result.notProved, 3u);
  EXPECT_TRUE(store.find(right, Checker::kAuto));
  EXPECT_FALSE(store.find(right, Checker::kZ3));  // another checker was not run
  for (const std::string& form : {wrong, damaged, std::string("no form")})
    EXPECT_FALSE(store.find(form, Checker::kAuto));
  EXPECT_TRUE(store.problems().empty());
}

}  // namespace
}  // namespace shardproof
