# SPDX-License-Identifier: Apache-2.0
# Checks every #include of the sources against the layers of CMakeLists.txt. A file may include
# headers of its own folder, of include/shardproof, and of the layers that its own needs, directly
# or through others. Layers are declared after what they need, so there is no cycle. A trusted layer
# needs trusted ones only.
#   cmake -DROOT=... -DLAYERS=build/layers.txt -P scripts/check_layers.cmake
# LAYERS: a line NAME|FOLDER|NEEDED,NEEDED|trusted (or untrusted) for each
cmake_minimum_required(VERSION 3.25)   # under -P no policy is set without it
file(STRINGS "${LAYERS}" lines)
set(folders)
foreach(line IN LISTS lines)
  string(REPLACE "|" ";" fields "${line}")
  list(GET fields 0 name)
  list(GET fields 1 folder)
  list(GET fields 2 needs)
  list(GET fields 3 trust)
  string(REPLACE "," ";" needs "${needs}")
  set(reached ${name})
  foreach(needed IN LISTS needs)
    if(NOT DEFINED reached_${needed})
      message(FATAL_ERROR
              "CMakeLists.txt: the layer ${name} needs ${needed}, which is declared after it: "
              "expected layers without a cycle, lower ones first")
    endif()
    if(trust STREQUAL "trusted" AND NOT trust_of_${needed} STREQUAL "trusted")
      message(FATAL_ERROR "CMakeLists.txt: the trusted layer ${name} needs ${needed}, "
                          "which is not trusted: expected trusted layers only")
    endif()
    list(APPEND reached ${reached_${needed}})
  endforeach()
  list(REMOVE_DUPLICATES reached)
  set(reached_${name} ${reached})
  set(trust_of_${name} ${trust})
  string(REGEX REPLACE "^.*/" "" prefix "${folder}")   # each role's folder is on the include path
  set(layer_of_${prefix} ${name})
  set(folder_of_${name} ${folder})
  list(APPEND names ${name})
endforeach()

set(wrong)
foreach(name IN LISTS names)
  file(GLOB_RECURSE files "${ROOT}/${folder_of_${name}}/*.cpp" "${ROOT}/${folder_of_${name}}/*.h")
  foreach(file IN LISTS files)
    file(STRINGS "${file}" includes REGEX "^[ \t]*#[ \t]*include[ \t]*\"")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^[ \t]*#[ \t]*include[ \t]*\"([^/\"]*)/.*" "\\1" prefix "${include}")
      if(prefix STREQUAL "shardproof")
        continue()
      endif()
      if(NOT DEFINED layer_of_${prefix})
        list(APPEND wrong "${file}: ${include}: no layer has this header")
      elseif(NOT layer_of_${prefix} IN_LIST reached_${name})
        string(CONCAT finding "${file}: ${include}: the layer ${name} does not need "
                              "${layer_of_${prefix}} (CMakeLists.txt)")
        list(APPEND wrong "${finding}")
      endif()
    endforeach()
  endforeach()
endforeach()
if(wrong)
  list(JOIN wrong "\n  " text)
  message(FATAL_ERROR "includes across layers:\n  ${text}")
endif()
