// SPDX-License-Identifier: Apache-2.0
// Two programs of the same devices, compared device by device. Of every array that a program is
// given or returns, what the devices hold is stacked along a new first dimension. So the program
// before a pass becomes one of a single device, and the program after it a plan of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// Parameters that both programs place on the devices by equal shardings stay as these have them:
// devices that hold the same part hold the same numbers. Of the others each device has its own.
struct StackedPrograms {
  Module model;  // what all devices of the program before compute, as a program of one
  Module plan;   // the program after, with the new dimension
};

// Throws InputError for what has no such form, with its place: other parameters or results than
// the other program has, tuples among them, branches that communicate, messages by send and recv.
StackedPrograms stackedPrograms(const Module& before, const std::string& beforeFile,
                                const Module& after, const std::string& afterFile,
                                std::int64_t devices, bool replicas);

// Whose copy a tensor of the lowered model is, by its name: the tensor of that name on that device,
// if the pass left the instruction. Nothing for one that is no device's alone.
struct CopyOf {
  std::string tensor;
  std::int64_t device = 0;
};
std::optional<CopyOf> copyOf(std::string_view modelTensor);

}  // namespace shardproof::hlo
