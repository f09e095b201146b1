// SPDX-License-Identifier: Apache-2.0
//
// A shared object that is no plug-in.

extern "C" int kuafu_plugin_of_another_name() { return 0; }
