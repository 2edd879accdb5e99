// SPDX-License-Identifier: Apache-2.0
// Standard output and standard error, with errors that are noticed.
#pragma once

#include <cstddef>
#include <string>

#include "report/layout.h"

namespace shardproof {

// If one of the descriptors 0 to 2 was closed by the caller, the next file that is opened would get
// its number, and results would be written into that file. This puts something there on which
// writing fails. To be called first.
void claimStandardStreams();

// Throws std::runtime_error when it cannot be written (closed, full, or nobody reads).
void writeStandardOutput(const std::string& text);

// The same for standard error, where that is where results go.
void writeStandardError(const std::string& text);

// Whether a stream is a terminal that knows escape sequences, and how wide it is; 0: it is none.
bool isTerminal(int descriptor);
std::size_t terminalWidth(int descriptor);

// What messages on standard error look like: wrapped on a terminal.
TextStyle errorStyle();

// A message on standard error; if even that fails there is nobody to tell.
void writeDiagnostic(const std::string& message);

}  // namespace shardproof
