"""What everybody knows: each line is `what is read | what follows | three wrong ways to go on`.

A line that ends with a question mark is asked as a question, the others are sentences to finish.
"""

from __future__ import annotations

ITEMS: dict[str, str] = {
    "physics": """
If you drop a glass on a stone floor, it will probably | break | melt | bounce | float
A piece of wood thrown into a lake will | float on the water | dissolve in the water | sink to the bottom | catch fire
When you leave ice in the sun, it turns into | water | stone | sand | paper
Water that gets very cold turns into | ice | steam | oil | dust
When water in a pot boils, what rises from it is | steam | smoke | dust | sand
A heavy stone dropped into a pond will | sink | float | fly away | melt
A balloon full of helium that you let go will | rise into the air | fall to the ground | stay in place | break the floor
A wet towel left in the sun becomes | dry | heavy | frozen | wet
A metal spoon left in hot soup becomes | hot | cold | soft | green
Butter left near a hot stove will | melt | freeze | grow | harden
A ball thrown up into the air will | come back down | keep going up | stay in the air | turn into a bird
At night the street is dark because there is no | sunlight | wind | rain | noise
You cannot see through a wall because it is not | transparent | heavy | tall | clean
A mirror shows you your own | reflection | shadow | voice | future
When you stand with your back to a lamp, in front of you there is your | shadow | reflection | picture | echo
If you shout into a deep canyon, you may hear an | echo | answer | engine | insect
A magnet will pick up | an iron nail | a wooden stick | a plastic cup | a paper napkin
A sugar cube stirred into hot tea will | dissolve | explode | float | freeze
The wheel was invented because round things are easy to | roll | eat | burn | read
A feather falls slowly because it is very | light | sharp | old | hot
It is hard to walk on ice because ice is | slippery | loud | dry | sticky
A bicycle with no air in its tires is hard to | ride | paint | hear | wash
A car without fuel will not | move | shine | exist | melt
If you blow on a candle, its flame will | go out | grow roots | turn blue | get wet
Paper held over a flame will | burn | freeze | melt | rust
An iron gate left in the rain for years will | rust | melt | shrink | grow
If you turn a full cup upside down, the water will | pour out | stay inside | disappear | freeze
A room gets brighter when you | open the curtains | close the door | lie down | turn off the lamp
Which is heaviest, a book, a truck, a spoon or a chair? | a truck | a chair | a book | a spoon
Which is softest, a brick, a table, a pillow or a stone? | a pillow | a brick | a table | a stone
What can you pour from one cup into another? | milk | a chair | a fork | a shoe
Which of them floats, a brick, a rubber duck, a hammer or a coin? | a rubber duck | a hammer | a coin | a brick
What happens to a snowman on a warm day? | it melts | it grows | it hardens | it burns
What makes the leaves on a tree move? | the wind | the grass | the moon | the soil
What do you see in the sky just after a storm, when the sun comes out? | a rainbow | a volcano | a waterfall | a desert
Why does a boat not sink? | it floats on water | it is made of salt | it is painted white | it has a name
""",
    "social": """
When somebody gives you a present, you say | thank you | good night | never mind | go away
If you step on someone's foot by accident, you should say | I am sorry | happy birthday | see you later | good morning
When you meet a friend in the morning, you say | good morning | good night | goodbye | well done
Before you go to sleep, you say to your family | good night | good morning | welcome back | congratulations
At a birthday party, people sing and eat | cake | medicine | grass | soap
When a baby cries, its mother tries to | comfort it | wake it up | scare it | sell it
People clap at the end of a concert because they | enjoyed the music | want to sleep | lost their money | are very cold
In a library, people are expected to be | quiet | loud | wet | hungry
When people wait for a bus, they often stand in a | line | hole | bathtub | tree
If a friend is sad, a kind thing to do is to | listen to them | laugh at them | ignore them | shout at them
A man who lies again and again will lose people's | trust | shoes | height | weather
When guests come, the host usually offers them | something to drink | a pair of scissors | a broken chair | a bus ticket
Children who want to speak in class raise their | hand | foot | chair | desk
You knock on a door before you enter because it is | polite | loud | heavy | wooden
At a funeral, most people feel | sad | excited | amused | hungry
When you win a prize, you usually feel | happy | angry | lonely | bored
A waiter who has been very helpful may get a good | tip | haircut | dog | ladder
If you borrow a book from a friend, later you should | give it back | throw it away | sell it | burn it
People shake hands when they | meet each other | take a shower | fall asleep | read a book
When you yawn or cough, you should cover your | mouth | ears | shoes | knees
At a wedding, two people | get married | go to jail | take an exam | buy a ticket
She wrote an angry letter because he had | broken his promise | saved her life | sent her flowers | cooked her dinner
He blushed because everybody was | looking at him | asleep | far away | invisible
The crowd cheered because their team had | won the game | missed the bus | lost the ball | gone home
The boy hid the broken vase because he was afraid of | being punished | getting wet | growing up | eating lunch
After the long argument, the two friends wanted to | make peace | grow wings | dig a well | paint the moon
What do you do when the phone rings? | answer it | eat it | wash it | bury it
What do people usually bring to a friend who is in the hospital? | flowers | a hammer | a ladder | a traffic light
Who do you call when a house is on fire? | the fire department | the dentist | the librarian | the baker
Who helps you when your tooth hurts? | a dentist | a pilot | a farmer | a singer
Who teaches children to read? | a teacher | a plumber | a sailor | a hunter
Whom do you ask for the menu? | the waiter | the doctor | the bus driver | the mail carrier
What do you do at the end of a phone call? | say goodbye | say hello | take a shower | brush your teeth
How does a person feel who has lost a pet? | sad | proud | sleepy | thirsty
How should you speak when a baby is asleep? | quietly | angrily | loudly | in a hurry
What do people exchange when they get married? | rings | shoes | stamps | tickets
""",
    "causal": """
The plants died because nobody gave them any | water | money | music | names
The boy was late for school because he | missed the bus | got up early | ran very fast | finished his homework
The street was wet because it had | rained | burned | moved | shouted
She put on a coat because it was | cold outside | very hot | her birthday | too quiet
He was tired because he had not | slept | laughed | spoken | voted
She was hungry because she had not | eaten breakfast | brushed her hair | read the news | opened the window
They turned on the lamp because it was | dark | loud | sweet | warm
He took an umbrella because it was going to | rain | be sunny | be Monday | smell good
The baby cried because it was | hungry | famous | retired | wealthy
The soup tasted bad because the cook had used too much | salt | time | light | noise
The car stopped because it had run out of | gas | paint | windows | songs
The window broke because somebody threw a | ball at it | party in it | glance at it | shadow on it
She opened the window because the room was too | hot | empty | famous | cold
He could not enter the house because he had lost his | key | hat | voice | shadow
The picnic was canceled because of the | heavy rain | blue sky | fresh bread | green grass
The cake was burned because it stayed too long in the | oven | fridge | garden | cupboard
The dog barked because it heard | a stranger at the door | the number seven | the color red | a silent movie
The milk went bad because nobody put it in the | fridge | oven | mailbox | garden
The man was arrested because he had | robbed a bank | helped a child | planted a tree | paid his bills
She got a good grade because she had | studied hard | slept in class | lost her books | skipped the test
His shirt was too small because he had | grown | slept | listened | smiled
The child had a stomach ache after eating too much | candy | paper | music | time
The ground shook, and houses fell down: it was | an earthquake | a rainbow | a holiday | a parade
All the lights in the house went out because of | a power failure | a loud song | a new carpet | a warm dinner
The ice cream melted because we left it in the | sun | freezer | snow | fridge
Her eyes were red because she had been | crying | singing | cooking rice | counting
He whispered because he did not want to | wake the baby | eat the soup | grow taller | be quiet
The farmer was worried because his fields had been too | dry | green | famous | polite
We took the stairs because the elevator was | broken | fast | working | empty
Her shoes were muddy because she had walked through | a wet field | a clean hall | a new carpet | a warm kitchen
What happens if you touch a hot stove? | you burn your hand | you fall asleep | you get wet | you grow taller
What happens if you do not water a plant? | it dries out | it starts to sing | it turns into a tree | it moves away
What may happen if you eat food that has gone bad? | you get sick | you get rich | you get younger | you get a job
What happens when you cut an onion? | your eyes water | your hair grows | your shoes break | your phone rings
Why do people wear sunglasses? | the sun is too bright | the rain is too loud | their feet are cold | their ears hurt
Why do we put food in a freezer? | to keep it fresh | to make it hot | to make it loud | to paint it
Why do people lock their doors? | to keep thieves out | to let the rain in | to make it warm | to feed the cat
""",
    "place": """
You keep milk cold in the | refrigerator | oven | closet | drawer
You can borrow books from the | library | bakery | bank | gas station
Fish live in the | water | sky | desert | forest
Airplanes take off from an | airport | island | office | elevator
You buy bread at a | bakery | library | bank | museum
When people are very sick, they are taken to a | hospital | theater | stadium | bakery
Cows and pigs live on a | farm | ship | roof | highway
You wash your hands in the | sink | oven | closet | garage
People park their cars in a | garage | kitchen | bathtub | mailbox
A bird builds its nest in a | tree | bottle | river | shoe
You see lions and elephants in cages at the | zoo | bank | post office | dentist
To see a movie on a big screen, people go to the | cinema | pharmacy | barber | bakery
Camels carry people through the | desert | ocean | hospital | tunnel
Students sit and listen in a | classroom | bathtub | closet | freezer
Trains stop at a | station | bakery | pharmacy | farm
You sleep in a | bed | sink | drawer | bucket
Clothes hang in the | closet | oven | fridge | mailbox
Cakes are baked in an | oven | attic | office | airplane
Prisoners are kept in a | jail | bakery | theater | garden
You put your letters into a | mailbox | bathtub | freezer | teapot
Money is kept safe in a | bank | river | sandbox | trash can
Old paintings are shown in a | museum | garage | kitchen | stable
Bees live together in a | hive | shell | cave under water | desk
You get your hair cut at the | barber | bakery | library | airport
You swim laps in a | pool | desert | library | closet
A captain works on a | ship | farm | stage | roof
A judge works in a | court | kitchen | garage | stable
Where do you find a pillow? | on a bed | in an oven | on a road | in a river
Where do penguins live? | in the cold south | in the hot desert | in tall trees | under the ground
Where do you throw away garbage? | in the trash can | in the fridge | on the bed | in the piano
Where does a stage actor work? | in a theater | in a mine | on a boat | in a field
Where do you buy medicine? | at the pharmacy | at the bakery | at the car wash | at the zoo
Where would you look for a word you do not know? | in a dictionary | in a cookbook | on a clock | on a map
Where does a king live? | in a castle | in a nest | in a tent | in a hive
Where do potatoes grow? | in the ground | in the sea | on the moon | in the clouds
Where do you sit when you drive a car? | behind the wheel | in the trunk | on the roof | under the hood
""",
    "tool": """
To cut a sheet of paper, you use | scissors | a spoon | a pillow | a sponge
To drive a nail into the wall, you need a | hammer | spoon | pillow | brush
To dry your hair after a shower, you use a | towel | knife | hammer | plate
To eat soup, you use a | spoon | fork | knife | straw hat
To sweep the floor, you use a | broom | ladder | pencil | fork
To reach the roof of a house, you climb a | ladder | table | bicycle | bucket
To see very small things, scientists use a | microscope | telephone | hammer | drum
To look at the stars, you use a | telescope | spoon | toaster | comb
To find out what time it is, look at the | clock | lamp | carpet | spoon
To open a locked door, you need a | key | cup | pillow | pencil
To write on a blackboard, a teacher uses | chalk | butter | a fork | a nail
To keep dry in the rain, people carry an | umbrella | axe | apple | oven
To dig a hole in the garden, you use a | shovel | spoonful of sugar | pillow | ruler
To take pictures of your holiday, you use a | camera | hammer | toaster | kettle
To tell how hot it is, you read a | thermometer | newspaper | menu | calendar
To cross a river, people built a | bridge | chimney | tower | fence
To measure how long a table is, you use a | ruler | scale | clock | spoon
To sew on a button, you need a needle and | thread | soap | salt | paint
To brush your teeth, you use a toothbrush and | toothpaste | butter | ink | glue
To chop down a tree, you use an | axe | umbrella | envelope | iron
To paint a wall, you use a | brush | fork | pillow | hammer
To send a letter, you put it in an | envelope | oven | elevator | orchestra
To make toast, you put bread in a | toaster | freezer | drawer | bucket
To stick two pieces of paper together, you use | glue | water | sand | salt
To carry your books to school, you use a | backpack | bathtub | pillow | bowl
To find your way in a new city, you use a | map | spoon | mirror | candle
To know which day it is, you check the | calendar | mirror | fridge | map
To play a song on the piano, you press the | keys | chairs | doors | windows
To stay under water for a long time, a diver needs a tank of | air | milk | sand | paint
To make a hole in a wooden board, you use a | drill | sponge | towel | pillow
What do you use to light a candle? | a match | a spoon | a towel | a pencil
What do you use to comb your hair? | a comb | a fork | a broom | a rake
What do firefighters use to put out a fire? | water | gasoline | paper | wood
What do you wear to keep your hands warm? | gloves | socks | a belt | glasses
What do you need to fry an egg? | a pan | a pillow | a ladder | a pen
What does a doctor use to listen to your heart? | a stethoscope | a telescope | a hammer | a camera
What do people use to buy things? | money | leaves | water | sand
""",
    "body": """
You hear with your | ears | knees | elbows | teeth
You smell a flower with your | nose | thumb | knee | ear
You see with your | eyes | feet | elbows | shoulders
We chew our food with our | teeth | ears | fingers | knees
You kick a ball with your | foot | ear | nose | hair
When you are thirsty, you need something to | drink | read | wear | paint
When you are hungry, you need something to | eat | wear | drive | write
When you are tired, you need to | sleep | run | shout | drive
The part of the body that pumps blood is the | heart | knee | nose | skin
When it is very hot, people's skin begins to | sweat | freeze | sing | rust
When people are cold, they begin to | shiver | sweat | bloom | melt
When people are sad, from their eyes come | tears | leaves | stones | sounds
Between your hand and your shoulder is your | arm | foot | nose | hip
In the middle of your leg there is your | knee | elbow | chin | wrist
On each hand, a person has five | fingers | noses | knees | ears
A glove is worn on the | hand | foot | head | nose
A hat is worn on the | head | hand | foot | knee
A shoe is worn on the | foot | hand | head | ear
A belt is worn around the | waist | nose | thumb | ear
A scarf is worn around the | neck | knee | foot | finger
A ring is worn on a | finger | knee | shoulder | tooth
We breathe air into our | lungs | bones | knees | teeth
You think with your | brain | stomach | elbow | hair
The food you swallow goes into your | stomach | ears | fingers | eyes
When you have a cold, your nose | runs | sings | sleeps | grows
After running a race, your heart beats | faster | in the kitchen | backwards | once a year
If you have a fever, your forehead feels | hot | blue | loud | sweet
If you stay in the sun too long, your skin turns | red | into glass | blue | into wood
If you cut your finger, it will | bleed | melt | rust | sing
A broken leg is put into a | cast | pocket | bucket | drawer
When dust gets into your nose, you | sneeze | sleep | dance | grow
When someone tells a good joke, people | laugh | bleed | freeze | sleep
What covers the whole outside of your body? | skin | bones | teeth | blood
What grows on top of your head? | hair | fingers | bones | grass
What do old people often use to help them walk? | a cane | a kite | a spoon | a drum
What do people wear when they cannot see well? | glasses | gloves | boots | a scarf
What do you do with your lungs? | breathe | walk | listen | chew
""",
}
