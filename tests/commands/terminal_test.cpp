// SPDX-License-Identifier: Apache-2.0
// What a person sees who mistypes, and on a terminal.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "commands/report_options.h"
#include "commands/usage.h"

namespace shardproof {
namespace {

class Usage : public ::testing::Test {
 protected:
  Usage() {
    CLI::App* verify = app_.add_subcommand("verify", "");
    verify->add_option("PLAN", plans_, "");
    verify->add_option("-m,--model", text_, "");
    verify->add_option("-j,--jobs", number_, "");
    CLI::App* cache = app_.add_subcommand("cache", "");
    cache->add_subcommand("stats", "");
    cache->add_subcommand("prune", "");
  }
  std::string unknown(const std::vector<std::string>& words) { return unknownWord(app_, words); }

  CLI::App app_;
  std::vector<std::string> plans_;
  std::string text_;
  int number_ = 0;
};

TEST_F(Usage, WordsThatAreKnown) {
  EXPECT_EQ(unknown({}), "");
  EXPECT_EQ(unknown({"verify", "a.json", "b.json", "-m", "x", "--jobs=2"}), "");
  EXPECT_EQ(unknown({"verify", "--model", "verfy", "-j", "-1"}), "");
  EXPECT_EQ(unknown({"verify", "--", "--modle"}), "");
  EXPECT_EQ(unknown({"cache", "stats", "--help"}), "");
}

TEST_F(Usage, WhatMayHaveBeenMeant) {
  EXPECT_EQ(unknown({"verfy"}), "unknown command verfy, did you mean \"verify\"?");
  EXPECT_EQ(unknown({"verify", "--modle", "x"}),
            "unknown option --modle of verify, did you mean \"--model\"?");
  EXPECT_EQ(unknown({"verify", "--modle=x"}),
            "unknown option --modle of verify, did you mean \"--model\"?");
  EXPECT_EQ(unknown({"cache", "stat"}), "unknown command stat of cache, did you mean \"stats\"?");
  EXPECT_EQ(unknown({"verify", "--zzzzzzzzzzzz"}), "unknown option --zzzzzzzzzzzz of verify");
  EXPECT_EQ(unknown({"\x1b[31m"}).find('\x1b'), std::string::npos);
}

TEST(ReportOptions, ColourAndWidth) {
  ReportOptions options;
  EXPECT_EQ(settle(options), "");
  EXPECT_FALSE(options.style.colour);  // tests run on no terminal
  EXPECT_EQ(options.style.width, 0u);
  options.colour = "always";
  options.width = 80;
  options.widthGiven = true;
  EXPECT_EQ(settle(options), "");
  EXPECT_TRUE(options.style.colour);
  EXPECT_EQ(options.style.width, 80u);
  options.json = options.sarif = "-";
  EXPECT_NE(settle(options), "");
}

}  // namespace
}  // namespace shardproof
