// SPDX-License-Identifier: Apache-2.0
// Results and options as tests need them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "report/example_report.h"
#include "sweep/config.h"
#include "sweep/result.h"

namespace shardproof::sweep {

// A few of the generator's options, without a command line.
class FewOptions : public GeneratorOptions {
 public:
  std::vector<std::string> names() const override {
    return {"arch", "size", "layers", "dp", "tp", "pp", "zero", "lr", "vocab-parallel"};
  }
  bool isFlag(const std::string& name) const override { return name == "vocab-parallel"; }
  generate::Options parse(const Settings& settings) const override {
    generate::Options options;
    bool architecture = false;
    for (const auto& [name, value] : settings) {
      const auto number = [&, option = name, text = value] {
        if (text.find_first_not_of("0123456789") != std::string::npos)
          throw generate::OptionError("--" + option + ": no number: " + text);
        return std::stoll(text);
      };
      if (name == "arch") options.architecture = value, architecture = true;
      if (name == "size") options.size = value;
      if (name == "layers") options.layers = number();
      if (name == "dp") options.dp = number();
      if (name == "tp") options.tp = number();
      if (name == "pp") options.pp = number();
      if (name == "zero") options.zero = static_cast<int>(number());
      if (name == "lr") options.learningRate = value;
      if (name == "vocab-parallel") options.vocabularyParallel = true;
    }
    if (!architecture) throw generate::OptionError("arch is required");
    return options;
  }
};

class InDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "shardproof-sweep-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
    return (dir_ / name).string();
  }

  std::filesystem::path dir_;
};

inline Configuration generated(const std::string& name, Verdict expect = Verdict::kEquivalent) {
  Configuration c;
  c.name = name;
  c.expect = expect;
  c.settings = {{"arch", "mlp"}, {"dp", "2"}};
  c.options = FewOptions().parse(c.settings);
  return c;
}

inline Report proved() {
  Report report = exampleReport();
  report.verdict = Verdict::kEquivalent;
  report.outputsProved = report.outputs;
  report.defects.clear();
  report.stages.resize(2);
  return report;
}

inline Result done(const std::string& name, const Report& report,
                   Verdict expect = Verdict::kEquivalent) {
  Result result = resultOf(generated(name, expect));
  setReport(result, report);
  return result;
}

inline Result undecided(const std::string& name) {
  Report report = proved();
  report.verdict = Verdict::kUndecided;
  report.reason = "no answer within 60 s";
  return done(name, report);
}

inline Result inState(const std::string& name, State state, const std::string& reason) {
  Result result = resultOf(generated(name));
  result.state = state;
  result.reason = reason;
  return result;
}

inline Sweep sweepOf(std::vector<Result> results) {
  Sweep sweep;
  sweep.config = "nightly.json";
  sweep.program = {{"version", "1"}};
  sweep.results = std::move(results);
  return sweep;
}

}  // namespace shardproof::sweep
