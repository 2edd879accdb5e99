// SPDX-License-Identifier: Apache-2.0
// Out of memory is an error with a message and an exit code of its own, wherever it happens: the
// program never ends by a signal for it.
//
// Where memory ends an exception is thrown, and main() turns it into the message. Three cases do
// not come that far. An exception that nothing may catch (in a thread of OpenMP, in a destructor,
// in a library's initialisation) ends in std::terminate; there may even be no memory for the
// exception itself, and then std::terminate is all that the runtime has. A stack that cannot grow
// is a SIGSEGV. And a library may call exit().
#pragma once

#include <exception>
#include <string>

namespace shardproof {

// Of std::terminate: says what happened and ends with the exit code. Allocates nothing.
[[noreturn]] void endAfterTerminate() noexcept;

// The same where a library called exit().
[[noreturn]] void endAfterExit() noexcept;

// Takes the address space of the whole stack of this thread now, as later there may be none. Throws
// std::bad_alloc.
void reserveStack();

// Whether this exception is a lack of memory, of threads or of processes.
bool isOutOfMemory(const std::exception& error);

// What to tell, with the limit that the process has, if it has one.
std::string outOfMemoryText();

}  // namespace shardproof
