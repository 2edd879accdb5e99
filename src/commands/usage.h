// SPDX-License-Identifier: Apache-2.0
// Words of a command line that are none of ours, and which may have been meant.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardproof {

// What is asked for cannot be meant: exit code 1, before anything runs. The message has no
// command's name, which is put before it.
class WrongUsage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "unknown option --modle of verify, did you mean "--model"?", or of a command; empty where all
// words are known. It is asked before what a command requires: what is missing is often there, but
// misspelt.
std::string unknownWord(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace shardproof
