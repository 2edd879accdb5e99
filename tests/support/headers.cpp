// SPDX-License-Identifier: Apache-2.0
// Nothing: the target that holds this file is there for its precompiled headers
// (tests/CMakeLists.txt).
