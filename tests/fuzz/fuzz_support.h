// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: inputs as files, because the readers read files, and mutations that
// keep JSON being JSON.
//
// A target is TARGET_fuzz.cpp with LLVMFuzzerTestOneInput; its seeds are in corpus/TARGET.
// scripts/fuzz runs them. Whatever a target reports as an error of the input is a good end; a
// crash, a sanitizer's message, a time-out or an abort() is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardproof::fuzz {

// A file that is written anew for each input, in a directory of this process that goes away with
// it. `data` that begins like gzip is given a name that says so, as the readers go by the name.
std::string writeInput(const std::string& name, std::string_view data);

// An input that is two files, a model and a plan: "MODEL\n%%\nPLAN". Without the separator it is a
// plan for the model of the demo.
struct ModelAndPlan {
  std::string model, plan;
};
ModelAndPlan splitInput(std::string_view data);
std::string joinInput(const ModelAndPlan& files);

// Changes one or a few values of a JSON document: numbers to awkward ones, strings and keys to
// others of the document, subtrees dropped, doubled, swapped or copied to another place; some
// everywhere at once. What is no JSON is left alone: an empty result. The same seed makes the same
// change.
std::string mutateJson(std::string_view text, std::uint32_t seed);

// LLVMFuzzerCustomMutator for plans alone, and for a model and a plan. One time in four, and for
// what is no JSON, libFuzzer's own mutations of bytes. `wanted`: other changes are tried until it
// says yes, a few times.
std::size_t mutateDocument(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);
std::size_t mutateModelAndPlan(std::uint8_t* data, std::size_t size, std::size_t most,
                               unsigned seed, bool (*wanted)(const ModelAndPlan&) = nullptr);

// A property that does not hold: says which, and aborts, which the fuzzer reports with the input.
void require(bool holds, const char* property, const std::string& detail = {});

}  // namespace shardproof::fuzz
