// SPDX-License-Identifier: Apache-2.0
// What is wrong with an input, found in one pass over it: the pass goes on after an error, so that
// all of a file's are told at once.
#pragma once

#include <utility>
#include <vector>

#include "shardproof/error.h"

namespace shardproof::ir {

class ErrorList {
 public:
  // Throws InputErrors where there are more than are told.
  void add(const InputError& error) {
    for (InputError& one : allOf(error)) {
      if (errors_.size() == InputErrors::kMost) throw InputErrors(std::move(errors_), true);
      errors_.push_back(std::move(one));
    }
    if (const auto* several = dynamic_cast<const InputErrors*>(&error); several && several->more())
      throw InputErrors(std::move(errors_), true);
  }
  // Runs `check`; what it throws is added. False: it threw.
  template <class Check>
  bool attempt(Check&& check) {
    try {
      std::forward<Check>(check)();
      return true;
    } catch (const InputError& error) {
      add(error);
      return false;
    }
  }
  bool empty() const { return errors_.empty(); }
  // Throws InputError where there is one, InputErrors where there are several.
  void throwIfAny() {
    if (errors_.size() == 1) {
      const InputError only = std::move(errors_.front());
      errors_.clear();  // who catches it and adds it has it once
      throw InputError(only);
    }
    if (!errors_.empty()) throw InputErrors(std::move(errors_), false);
  }

 private:
  std::vector<InputError> errors_;
};

}  // namespace shardproof::ir
