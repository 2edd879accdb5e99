// SPDX-License-Identifier: Apache-2.0
// Whether a difference that somebody saw is rounding.
#include "compare/rounding.h"

#include <gtest/gtest.h>

#include <sstream>

#include "compare/report.h"
#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

class Rounding : public ::testing::Test {
 protected:
  Rounding() {
    for (int d = 0; d < 3; ++d) {
      const float moved = 1 + 1e-3F * static_cast<float>(d);
      writeRank(folder_.path("r") + (d > 0 ? "/draw" + std::to_string(d) : ""), 0, {},
                {floats("a.out", {2}, {1, 2 * moved}, {{"kind", "output"}}),
                 floats("loss", {}, {2 * moved}, {{"kind", "result"}})});
    }
    writeRank(folder_.path("c"), 0, {},
              {floats("a.out", {2}, {1, 2}, {{"kind", "output"}}),
               floats("loss", {}, {2.1F}, {{"kind", "result"}})});
  }

  static std::string text(const RoundingOfStep& rounding, const std::string& tensor,
                          std::optional<double> difference) {
    std::ostringstream out;
    writeRounding(out, rounding, tensor, difference);
    return out.str();
  }

  const Folder folder_;
};

TEST_F(Rounding, OfAReference) {
  const RoundingOfStep found = roundingOf(folder_.path("r"), {});
  EXPECT_EQ(found.draws, 2U);
  std::string said = text(found, "", 3e-3);
  EXPECT_NE(said.find("loss (result, F32): rounding moves it by up to 2.00e-03 of its size in 2 "
                      "perturbed runs; up to 2.50e-02 counts as rounding"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("a difference of 3.00e-03 is within that: rounding explains it"),
            std::string::npos)
      << said;
  said = text(found, "", 8e-2);
  EXPECT_NE(said.find("a difference of 8.00e-02 is 3.20e+00 times that: more than rounding"),
            std::string::npos)
      << said;
  said = text(found, "", std::nullopt);
  EXPECT_NE(said.find("output"), std::string::npos) << said;
  EXPECT_NE(said.find("a.out"), std::string::npos) << said;
  EXPECT_THROW(text(found, "b.out", std::nullopt), InputError);
}

TEST_F(Rounding, OfAComparison) {
  const Comparison comparison = compareTraces(folder_.path("r"), folder_.path("c"), {});
  const auto json = nlohmann::ordered_json::parse(jsonText(comparison, 10));
  const RoundingOfStep found = roundingOf(json, "report.json");
  const std::string said = text(found, "", std::nullopt);
  EXPECT_NE(said.find("loss (result, F32)"), std::string::npos) << said;
  EXPECT_NE(said.find("a difference of 5.00e-02 is 2.00e+00 times that: more than rounding"),
            std::string::npos)
      << said;
  EXPECT_THROW(roundingOf(nlohmann::ordered_json::object(), "report.json"), InputError);
}

TEST_F(Rounding, OfWhatRoundingMovesAsFarAsAMistake) {
  Options options;
  options.bound = 1e-3;
  const std::string said = text(roundingOf(folder_.path("r"), options), "loss", 3e-3);
  EXPECT_NE(said.find("is not decided"), std::string::npos) << said;
}

}  // namespace
}  // namespace shardproof::compare
