// SPDX-License-Identifier: Apache-2.0
// Reads a plan, builds another one in memory, verifies both and walks the reports.
#include <cstdio>
#include <exception>
#include <utility>

#include <shardproof/builder.h>
#include <shardproof/error.h>
#include <shardproof/read.h>
#include <shardproof/report.h>
#include <shardproof/verify.h>

namespace sp = shardproof;

// y = x w on two ranks, x cut by columns and w by rows. `dim`: along which x is cut.
static std::unique_ptr<sp::Problem> rowParallel(bool reduced) {
  sp::ProblemBuilder b;
  b.model().input("x", {4, 8});
  b.model().parameter("w", {8, 6});
  b.model().produced("y", {4, 6});
  b.model().node("matmul", {"x", "w"}, {"y"});
  b.output("y");
  b.axis("tp", 2);
  sp::ProgramBuilder& p = b.program();
  p.input("x", {4, 4});
  p.parameter("w", {4, 6});
  p.produced("part", {4, 6});
  p.node("matmul", {"x", "w"}, {"part"}, {.location = "layer.py:12"});
  if (reduced) {
    p.produced("y", {4, 6});
    p.allReduce("part", "y", {.comm = "sum", .axes = {"tp"}});
  }
  b.lineage("x", sp::Role::kInput).shard({{0, 4}, {0, 4}}).step("tp", {0, 4}).part("x");
  b.lineage("w", sp::Role::kInput).shard({{0, 4}, {0, 6}}).step("tp", {4, 0}).part("w");
  b.lineage("y", sp::Role::kOutput).shard({{0, 4}, {0, 6}}).part(reduced ? "y" : "part");
  return std::move(b).build();
}

static void print(const char* what, const sp::Report& report) {
  std::printf("%s: %s, %zu of %zu outputs proved\n", what, sp::toString(report.verdict),
              report.outputsProved, report.outputs);
  for (const sp::Defect& defect : report.defects) {
    std::printf("  %s: %s\n", sp::toString(defect.kind), defect.lineage.c_str());
    for (const sp::NodePlace& place : defect.nodes)
      std::printf("    %s %s %s\n", place.pointer.c_str(), place.op.c_str(),
                  place.location.c_str());
  }
}

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_step PLAN\n");
    return 2;
  }
  sp::VerifyOptions options;
  options.jobs = 2;
  print("read", sp::verify(*sp::readProblem(std::nullopt, argv[1]), options));
  print("built", sp::verify(*rowParallel(true), options));
  print("wrong", sp::verify(*rowParallel(false), options));
  return 0;
} catch (const sp::InputError& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
