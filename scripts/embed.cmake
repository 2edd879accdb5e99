# SPDX-License-Identifier: Apache-2.0
# Makes a C++ source of text files:
#   cmake -DOUT=FILE -DNAMESPACE=a::b -DHEADER=HEADER "-DTEXTS=kName=file,file;..." -P embed.cmake
# Several files of one name are concatenated. A file "licence:PATH" becomes a comment of JavaScript
# and CSS, above the code that it is the licence of.
cmake_minimum_required(VERSION 3.25)   # under -P no policy is set without it
string(CONCAT source "// Made by scripts/embed.cmake.\n#include \"${HEADER}\"\n\n"
                     "namespace ${NAMESPACE} {\n\n")
foreach(entry IN LISTS TEXTS)
  string(REGEX MATCH "^([A-Za-z]+)=(.*)$" matched "${entry}")
  set(name ${CMAKE_MATCH_1})
  string(REPLACE "," ";" files "${CMAKE_MATCH_2}")
  string(APPEND source "const std::string_view ${name} =\n")
  foreach(file IN LISTS files)
    set(before "")
    set(behind "\n")
    if(file MATCHES "^licence:(.*)$")
      set(file ${CMAKE_MATCH_1})
      set(before "/*!\n")
      set(behind "\n*/\n")
    endif()
    file(READ "${file}" text)
    if(before)
      string(REPLACE "*/" "* /" text "${text}")
    endif()
    # The page is one file: no picture beside it.
    string(REGEX REPLACE "background(-image)?:[^;}]*url\\([^)]*\\)[^;}]*" "" text "${text}")
    string(FIND "${text}" ")embedded\"" end)
    if(NOT end EQUAL -1)
      message(FATAL_ERROR "${file} cannot be embedded")
    endif()
    # A script element ends at its end tag, wherever that stands.
    string(REPLACE "</script" "<\\/script" text "${text}")
    if(NOT file MATCHES "html$")
      string(APPEND source "R\"embedded(${before}${text}${behind})embedded\"\n")
    else()
      file(READ "${file}" text)
      string(APPEND source "R\"embedded(${text})embedded\"\n")
    endif()
  endforeach()
  string(APPEND source ";\n\n")
endforeach()
string(APPEND source "}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUT}" "${source}")
