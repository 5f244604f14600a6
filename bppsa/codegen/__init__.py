"""From graphs to native code: a small kernel language, its definition, its printers, and the build.

Belongs here: the language (`ir`), the slow interpreter that defines it (`interpret`), lowering of graphs into it,
printers as tables from op to text, and what turns text into a loaded library (build, cache, native call). What a kernel
does at each point is always derived from a graph; no file here knows a model by name.

Does not belong here: choosing a strategy (`plan`), reading models (`fxpasses`), buffers and autograd (`runtime`).
"""
