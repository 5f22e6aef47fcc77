# Alpa, section 8.4: linear in the layers. data, picture: file names.
set terminal svg size 600,400 dynamic
set output picture
set key top left autotitle columnhead
set xlabel "layers"
set ylabel "prices asked for"
set y2label "CPU seconds"
set y2tics
set ytics nomirror
plot data using 1:2 with linespoints axes x1y1, data using 1:3 with linespoints axes x1y1, \
     data using 1:5 with linespoints axes x1y2
